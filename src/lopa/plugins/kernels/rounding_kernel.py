"""Rounding of rows to 8 bits, and scales of products of rounded rows, as functions and Triton kernels.

A row is divided by its scale, its largest magnitude / 448 or / 127, and rounded to e4m3 or int8. Halfway cases are
rounded to even, and larger magnitudes to the largest number. A row with a NaN has the scale NaN.
"""

import triton
import triton.language as tl

_LEAST = tl.constexpr(1e-30)
"""Least magnitude that gives a scale, for rows of zeros."""


@triton.jit
def magnitude_bits(x):
    """Return the bits of float32 magnitudes. They sort like magnitudes, and NaN is the largest."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def row_scale(bits, step):
    """Return the scale of a row whose largest magnitude has these bits. `step` is 1 / 448 or 1 / 127."""
    greatest = bits.to(tl.float32, bitcast=True)
    return tl.where(greatest < _LEAST, _LEAST, greatest) * step


@triton.jit
def rounded(x, scale, is_e4m3):
    """Return float32 numbers divided by their scale, as bytes of e4m3 or of int8."""
    y = tl.div_rn(x, scale)
    bits = magnitude_bits(y)
    if is_e4m3 != 0:
        magnitude = bits.to(tl.float32, bitcast=True)
        normal = tl.minimum(((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - 0x3C0, 0x7E)
        code = tl.where(magnitude < 2.0**-6, (magnitude + 2.0**14).to(tl.int32, bitcast=True) - 0x46800000, normal)
        code = tl.where(bits > 0x7F800000, 0x7F, code) | ((y.to(tl.int32, bitcast=True) >> 24) & 0x80)
    else:
        near = tl.where(bits < 0x43000000, y, 0.0)  # below 128: others follow from a scale that is not finite
        code = (near + 1.5 * 2.0**23).to(tl.int32, bitcast=True) - 0x4B400000
    return code.to(tl.int8)


@triton.jit
def scaled(x, scales, row, channel, inside):
    """Return numbers of a product times scales, rounded to their type, in float32.

    `scales` are pointers to those of rows and of columns, and 0 or 1: whether there are any.
    """
    scale = tl.load(scales[0] + row, mask=scales[2] != 0, other=1.0)
    of_column = tl.load(scales[1] + channel, mask=inside & (scales[2] != 0), other=1.0)
    return (x.to(tl.float32) * of_column * scale).to(x.dtype).to(tl.float32)


@triton.jit
def round_rows_kernel(
    x,  # [rows, size]
    output,  # bytes [rows, size]
    scales,  # float32 [rows]: times `factor`
    size,
    step,
    factor,
    is_e4m3,
    BLOCK: tl.constexpr,  # channels per step, a power of two
):
    """Round a row. The launch grid is (rows)."""
    row = x + tl.program_id(0).to(tl.int64) * size
    target = output + tl.program_id(0).to(tl.int64) * size
    channel = tl.arange(0, BLOCK)
    bits = magnitude_bits(tl.load(row + channel, mask=channel < size, other=0.0).to(tl.float32))
    for start in range(BLOCK, size, BLOCK):
        block = tl.load(row + start + channel, mask=start + channel < size, other=0.0).to(tl.float32)
        bits = tl.maximum(bits, magnitude_bits(block))
    scale = row_scale(tl.max(bits, 0), step)
    tl.store(scales + tl.program_id(0), scale * factor)
    for start in range(0, size, BLOCK):
        inside = start + channel < size
        block = tl.load(row + start + channel, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + start + channel, rounded(block, scale, is_e4m3), mask=inside)


@triton.jit
def scale_rows_kernel(
    x,  # [rows, size]
    row_scales,  # float32 [rows]
    column_scales,  # float32 [size]
    output,  # [rows, size]
    size,
    BLOCK: tl.constexpr,
):
    """Multiply by the scales of rows and columns. The launch grid is (rows, size / BLOCK rounded up)."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < size
    product = tl.load(x + row * size + channel, mask=inside, other=0.0)
    result = scaled(product, (row_scales, column_scales, 1), row, channel, inside)
    tl.store(output + row * size + channel, result.to(output.dtype.element_ty), mask=inside)
