"""Commit as one Triton kernel, which copies rows of all layers, keys and values, in one launch.

Engines choose the places of arrays, so a table has their addresses. Rows of any type are copied as bits. `commit`
launches the kernel.
"""

import triton
import triton.language as tl


@triton.jit
def commit_kernel(
    addresses,  # int64 [arrays, 2]: a window array [R * B, KV_HEADS, W, SIZE] and its cache [slots, KV_HEADS, P, SIZE]
    window,  # index in R * B
    slot,
    width,
    prefix,
    offset,
    count,
    WORD: tl.constexpr,  # integer type with the size of a number
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS: tl.constexpr,  # SIZE rounded up to a power of two
    ROWS: tl.constexpr,
):
    """Copy with the grid (arrays, KV_HEADS, tiles of ROWS over count)."""
    entry = addresses + 2 * tl.program_id(0)
    source = tl.load(entry).to(tl.pointer_type(WORD))
    target = tl.load(entry + 1).to(tl.pointer_type(WORD))
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, CHANNELS)
    wanted = (row < count)[:, None] & (channel < SIZE)[None, :]
    from_row = (((window * KV_HEADS + head) * width) + row).to(tl.int64)
    to_row = (((slot * KV_HEADS + head) * prefix) + offset + row).to(tl.int64)
    bits = tl.load(source + from_row[:, None] * SIZE + channel[None, :], mask=wanted)
    tl.store(target + to_row[:, None] * SIZE + channel[None, :], bits, mask=wanted)
