"""Commit as one Triton kernel, which copies the keys and values of all layers in one launch.

Rows of any type are copied as words of bits. Addresses come from a table, since callers choose where rows lie.
"""

import triton
import triton.language as tl


@triton.jit
def commit_kernel(
    table,  # int64 [pieces, 3]: address of the first row to read, of the first row to write, number of rows
    heads,
    source_array,  # rows between arrays (the keys or values of a layer), between heads, and between rows
    source_head,
    source_row,
    target_array,
    target_head,
    target_row,
    size,  # words of a row
    WORD: tl.constexpr,  # integer type
    WORDS: tl.constexpr,  # words per step, a power of two
    ROWS: tl.constexpr,
):
    """Copy the rows. The launch grid is (pieces, arrays * heads, tiles of ROWS over the largest number of rows)."""
    entry = table + 3 * tl.program_id(0)
    source = tl.load(entry).to(tl.pointer_type(WORD))
    target = tl.load(entry + 1).to(tl.pointer_type(WORD))
    count = tl.load(entry + 2)
    array = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    from_row = (array * source_array + head * source_head + row * source_row).to(tl.int64) * size
    to_row = (array * target_array + head * target_head + row * target_row).to(tl.int64) * size
    for start in range(0, size, WORDS):
        word = start + tl.arange(0, WORDS)
        wanted = (row < count)[:, None] & (word < size)[None, :]
        bits = tl.load(source + from_row[:, None] + word[None, :], mask=wanted)
        tl.store(target + to_row[:, None] + word[None, :], bits, mask=wanted)
