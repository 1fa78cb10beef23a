"""Commit as one Triton kernel, which copies the keys and values of all layers in one launch.

Engines choose where arrays are allocated, so the kernel reads their addresses from a table. Rows of any type are copied
as bits.
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
    WORD: tl.constexpr,  # integer type with the size of an element
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    CHANNELS: tl.constexpr,  # SIZE rounded up to a power of two
    ROWS: tl.constexpr,
):
    """Copy the rows. The launch grid is (arrays, KV_HEADS, tiles of ROWS over count)."""
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
