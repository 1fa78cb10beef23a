"""Commit as one Triton kernel, which copies the keys and values of all layers in one launch.

Engines choose where arrays are allocated, so the kernel reads their addresses from a table. Rows of any type are copied
as words of bits.
"""

import triton
import triton.language as tl


@triton.jit
def commit_kernel(
    addresses,  # int64 [arrays, 2]: a window array [R * B, kv_heads, W, size] and its cache [slots, kv_heads, P, size]
    window,  # index in R * B
    slot,
    width,
    prefix,
    offset,
    count,
    kv_heads,
    size,  # words of a row
    WORD: tl.constexpr,  # integer type
    WORDS: tl.constexpr,  # words per step, a power of two
    ROWS: tl.constexpr,
):
    """Copy the rows. The launch grid is (arrays, kv_heads, tiles of ROWS over count)."""
    entry = addresses + 2 * tl.program_id(0)
    source = tl.load(entry).to(tl.pointer_type(WORD))
    target = tl.load(entry + 1).to(tl.pointer_type(WORD))
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    from_row = ((window * kv_heads + head) * width + row).to(tl.int64) * size
    to_row = ((slot * kv_heads + head) * prefix + offset + row).to(tl.int64) * size
    for start in range(0, size, WORDS):
        word = start + tl.arange(0, WORDS)
        wanted = (row < count)[:, None] & (word < size)[None, :]
        bits = tl.load(source + from_row[:, None] + word[None, :], mask=wanted)
        tl.store(target + to_row[:, None] + word[None, :], bits, mask=wanted)
