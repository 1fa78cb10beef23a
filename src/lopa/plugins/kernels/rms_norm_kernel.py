"""RMS norm as one Triton kernel, with or without the residual sum in front of it and the rounding of rows behind it."""

import triton
import triton.language as tl

from lopa.plugins.kernels.rounding_kernel import magnitude_bits, rounded, row_scale, scaled


@triton.jit
def rms_norm_kernel(
    x,  # [rows, size]
    delta,  # [rows, size], read if SKIP
    weight,  # [size]
    row_scales,  # float32 [rows]: of delta, read if SKIP and has_scales
    column_scales,  # float32 [size], likewise
    has_scales,  # 0 or 1
    normed,  # [rows, size], written unless ROUND
    total,  # [rows, size]: x + delta, written if SKIP
    bytes_of_rows,  # [rows, size]: the norm as e4m3 or int8, written if ROUND
    scales_of_rows,  # float32 [rows]: times `factor`, written if ROUND
    size,
    epsilon,
    step,  # as in rounding_kernel
    factor,
    is_e4m3,
    SKIP: tl.constexpr,  # True: norm of x + delta
    ROUND: tl.constexpr,  # True: round the norm to 8 bits
    BLOCK: tl.constexpr,  # channels per step, a power of two
):
    """Normalize a row. The launch grid is (rows). A row of at most BLOCK channels is read once."""
    number = tl.program_id(0)
    row = number.to(tl.int64) * size
    channel = tl.arange(0, BLOCK)
    x += row
    delta += row
    first = _summed(x, delta, number, row_scales, column_scales, has_scales, channel, size, SKIP)
    squares = first * first
    for start in range(BLOCK, size, BLOCK):
        block = _summed(x, delta, number, row_scales, column_scales, has_scales, start + channel, size, SKIP)
        squares += block * block
    rms = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / size + epsilon)
    scale = 1.0
    if ROUND:
        bits = magnitude_bits(_normed(first, rms, weight, channel, size))
        for start in range(BLOCK, size, BLOCK):
            block = _summed(x, delta, number, row_scales, column_scales, has_scales, start + channel, size, SKIP)
            bits = tl.maximum(bits, magnitude_bits(_normed(block, rms, weight, start + channel, size)))
        scale = row_scale(tl.max(bits, 0), step)
        tl.store(scales_of_rows + number, scale * factor)
    normed += row
    total += row
    bytes_of_rows += row
    _store(first, rms, weight, normed, total, bytes_of_rows, scale, is_e4m3, channel, size, SKIP, ROUND)
    for start in range(BLOCK, size, BLOCK):
        here = start + channel
        block = _summed(x, delta, number, row_scales, column_scales, has_scales, here, size, SKIP)
        _store(block, rms, weight, normed, total, bytes_of_rows, scale, is_e4m3, here, size, SKIP, ROUND)


@triton.jit
def _summed(x, delta, number, row_scales, column_scales, has_scales, channel, size, SKIP: tl.constexpr):
    """Return channels of x, or of x + delta rounded to its type, in float32. Channels from `size` on are zero."""
    inside = channel < size
    block = tl.load(x + channel, mask=inside, other=0.0)
    if SKIP:
        added = tl.load(delta + channel, mask=inside, other=0.0)
        added = scaled(added, number, row_scales, channel, column_scales, has_scales, inside)
        block = (block.to(tl.float32) + added).to(block.dtype)
    return block.to(tl.float32)


@triton.jit
def _normed(block, rms, weight, channel, size):
    """Return the norm of channels, rounded to the type of `weight`, in float32."""
    factor = tl.load(weight + channel, mask=channel < size, other=0.0)
    return (block * rms * factor.to(tl.float32)).to(factor.dtype).to(tl.float32)


@triton.jit
def _store(
    block,
    rms,
    weight,
    normed,
    total,
    bytes_of_rows,
    scale,
    is_e4m3,
    channel,
    size,
    SKIP: tl.constexpr,
    ROUND: tl.constexpr,
):
    inside = channel < size
    result = _normed(block, rms, weight, channel, size)
    if ROUND:
        tl.store(bytes_of_rows + channel, rounded(result, scale, is_e4m3), mask=inside)
    else:
        tl.store(normed + channel, result.to(normed.dtype.element_ty), mask=inside)
    if SKIP:
        tl.store(total + channel, block.to(total.dtype.element_ty), mask=inside)
