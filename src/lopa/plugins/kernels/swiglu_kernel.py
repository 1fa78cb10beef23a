"""SwiGLU, or the same with gelu, as two Triton kernels. The second rounds the rows of the result to 8 bits."""

import triton
import triton.language as tl

from lopa.plugins.kernels.rounding_kernel import magnitude_bits, rounded, row_scale, scaled


@triton.jit
def swiglu_kernel(
    gate,  # row r begins at r * stride: [rows, size]
    up,  # likewise
    row_scales,  # float32 [rows], read if has_scales
    column_scales,  # float32 [2 * size], of gate and up, likewise
    has_scales,  # 0 or 1
    output,  # [rows, size]
    stride,
    size,
    is_gelu,  # 0 or 1: as in activated
    BLOCK: tl.constexpr,  # channels per program, a power of two
):
    """Compute activated(gate) * up. The first factor is rounded. The launch grid is (rows, size / BLOCK rounded up)."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    result = _gated(gate, up, (row_scales, column_scales, has_scales), row, channel, stride, size, is_gelu)
    tl.store(output + row * size + channel, result.to(output.dtype.element_ty), mask=channel < size)


@triton.jit
def rounded_swiglu_kernel(
    gate,  # as in swiglu_kernel
    up,
    row_scales,
    column_scales,
    has_scales,
    output,  # bytes [rows, size]
    scales,  # float32 [rows]: times `factor`
    stride,
    size,
    step,  # as in rounding_kernel
    factor,
    is_e4m3,
    is_gelu,
    BLOCK: tl.constexpr,
):
    """Compute activated(gate) * up, and round its rows. The launch grid is (rows)."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    given = (row_scales, column_scales, has_scales)
    bits = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        result = _gated(gate, up, given, row, start + channel, stride, size, is_gelu)
        bits = tl.maximum(bits, magnitude_bits(result))
    scale = row_scale(tl.max(bits, 0), step)
    tl.store(scales + row, scale * factor)
    for start in range(0, size, BLOCK):
        here = start + channel
        result = _gated(gate, up, given, row, here, stride, size, is_gelu)
        tl.store(output + row * size + here, rounded(result, scale, is_e4m3), mask=here < size)


@triton.jit
def _gated(gate, up, scales, row, channel, stride, size, is_gelu):
    """Return channels of the result, rounded to the type of `up`, in float32. Channels from `size` on are zero."""
    inside = channel < size
    g = tl.load(gate + row * stride + channel, mask=inside, other=0.0)
    u = tl.load(up + row * stride + channel, mask=inside, other=0.0)
    wide = scaled(g, scales, row, channel, inside)
    active = activated(wide, is_gelu).to(u.dtype).to(tl.float32)
    return (active * scaled(u, scales, row, size + channel, inside)).to(u.dtype).to(tl.float32)


@triton.jit
def activated(x, is_gelu):
    """Return silu(x), or gelu(x) by tanh: x * sigmoid(1.5957691 * (x + 0.044715 x^3)), where 1.5957691 is
    sqrt(8 / pi)."""
    return x * tl.sigmoid(x * tl.where(is_gelu != 0, 1.5957691216057308 + 0.07135481627260025 * x * x, 1.0))
