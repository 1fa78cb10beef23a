"""SwiGLU as two Triton kernels: with the numbers of the result, and with its rows rounded to 8 bits."""

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
    BLOCK: tl.constexpr,  # channels per program, a power of two
):
    """Compute silu(gate) * up. silu is rounded first. The launch grid is (rows, size / BLOCK rounded up)."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    result = _gated(gate, up, (row_scales, column_scales, has_scales), row, channel, stride, size)
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
    BLOCK: tl.constexpr,
):
    """Compute silu(gate) * up, and round its rows. The launch grid is (rows)."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    given = (row_scales, column_scales, has_scales)
    bits = tl.zeros([BLOCK], tl.int32)
    for start in range(0, size, BLOCK):
        result = _gated(gate, up, given, row, start + channel, stride, size)
        bits = tl.maximum(bits, magnitude_bits(result))
    scale = row_scale(tl.max(bits, 0), step)
    tl.store(scales + row, scale * factor)
    for start in range(0, size, BLOCK):
        here = start + channel
        result = _gated(gate, up, given, row, here, stride, size)
        tl.store(output + row * size + here, rounded(result, scale, is_e4m3), mask=here < size)


@triton.jit
def _gated(gate, up, scales, row, channel, stride, size):
    """Return channels of the result, rounded to the type of `up`, in float32. Channels from `size` on are zero."""
    inside = channel < size
    g = tl.load(gate + row * stride + channel, mask=inside, other=0.0)
    u = tl.load(up + row * stride + channel, mask=inside, other=0.0)
    wide = scaled(g, scales, row, channel, inside)
    silu = (wide * tl.sigmoid(wide)).to(u.dtype).to(tl.float32)
    return (silu * scaled(u, scales, row, size + channel, inside)).to(u.dtype).to(tl.float32)
