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
    given = (x + row, delta + row, (row_scales, column_scales, has_scales), number)
    first = _summed(given, channel, size, SKIP)
    squares = first * first
    for start in range(BLOCK, size, BLOCK):
        block = _summed(given, start + channel, size, SKIP)
        squares += block * block
    rms = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / size + epsilon)
    scale = 1.0
    if ROUND:
        bits = magnitude_bits(_normed(first, rms, weight, channel, size))
        for start in range(BLOCK, size, BLOCK):
            block = _summed(given, start + channel, size, SKIP)
            bits = tl.maximum(bits, magnitude_bits(_normed(block, rms, weight, start + channel, size)))
        scale = row_scale(tl.max(bits, 0), step)
        tl.store(scales_of_rows + number, scale * factor)
    targets = (normed + row, total + row, bytes_of_rows + row)
    _store(first, rms, weight, targets, scale, is_e4m3, channel, size, SKIP, ROUND)
    for start in range(BLOCK, size, BLOCK):
        block = _summed(given, start + channel, size, SKIP)
        _store(block, rms, weight, targets, scale, is_e4m3, start + channel, size, SKIP, ROUND)


@triton.jit
def _summed(given, channel, size, SKIP: tl.constexpr):
    """Return channels of x, or of x + delta rounded to its type, in float32. Channels from `size` on are zero."""
    inside = channel < size
    block = tl.load(given[0] + channel, mask=inside, other=0.0)
    if SKIP:
        added = tl.load(given[1] + channel, mask=inside, other=0.0)
        block = (block.to(tl.float32) + scaled(added, given[2], given[3], channel, inside)).to(block.dtype)
    return block.to(tl.float32)


@triton.jit
def _normed(block, rms, weight, channel, size):
    """Return the norm of channels, rounded to the type of `weight`, in float32."""
    factor = tl.load(weight + channel, mask=channel < size, other=0.0)
    return (block * rms * factor.to(tl.float32)).to(factor.dtype).to(tl.float32)


@triton.jit
def _store(block, rms, weight, targets, scale, is_e4m3, channel, size, SKIP: tl.constexpr, ROUND: tl.constexpr):
    result = _normed(block, rms, weight, channel, size)
    if ROUND:
        tl.store(targets[2] + channel, rounded(result, scale, is_e4m3), mask=channel < size)
    else:
        tl.store(targets[0] + channel, result.to(targets[0].dtype.element_ty), mask=channel < size)
    if SKIP:
        tl.store(targets[1] + channel, block.to(targets[1].dtype.element_ty), mask=channel < size)
