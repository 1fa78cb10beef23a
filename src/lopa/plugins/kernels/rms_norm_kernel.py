"""RMS norm as one Triton kernel, with or without the residual sum in front of it."""

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x,  # [rows, size]
    delta,  # [rows, size], read if SKIP
    weight,  # [size]
    normed,  # [rows, size]
    total,  # [rows, size]: x + delta, written if SKIP
    size,
    epsilon,
    SKIP: tl.constexpr,  # True: norm of x + delta
    BLOCK: tl.constexpr,  # channels per step, a power of two
):
    """Normalize a row. The launch grid is (rows). A row of at most BLOCK channels is read once, a longer one twice."""
    row = tl.program_id(0).to(tl.int64) * size
    channel = tl.arange(0, BLOCK)
    first = _summed(x + row, delta + row, channel, size, SKIP)
    squares = first * first
    for start in range(BLOCK, size, BLOCK):
        block = _summed(x + row, delta + row, start + channel, size, SKIP)
        squares += block * block
    factor = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / size + epsilon)
    _store(first, factor, weight, normed + row, total + row, channel, size, SKIP)
    for start in range(BLOCK, size, BLOCK):
        block = _summed(x + row, delta + row, start + channel, size, SKIP)
        _store(block, factor, weight, normed + row, total + row, start + channel, size, SKIP)


@triton.jit
def _summed(x, delta, channel, size, SKIP: tl.constexpr):
    """Return channels of x, or of x + delta rounded to its type, in float32. Channels from `size` on are zero."""
    block = tl.load(x + channel, mask=channel < size, other=0.0)
    if SKIP:
        added = tl.load(delta + channel, mask=channel < size, other=0.0).to(tl.float32)
        block = (block.to(tl.float32) + added).to(block.dtype)
    return block.to(tl.float32)


@triton.jit
def _store(block, factor, weight, normed, total, channel, size, SKIP: tl.constexpr):
    inside = channel < size
    scaled = block * factor * tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + channel, scaled.to(normed.dtype.element_ty), mask=inside)
    if SKIP:
        tl.store(total + channel, block.to(total.dtype.element_ty), mask=inside)
