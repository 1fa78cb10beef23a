"""Branch attention as two Triton kernels, which work on lists of tasks and read each row of a cache for all branches.

A task has a few packed rows, a part of their prefix and a range of packed rows that contains their windows. Pair i of
a task is query head i % G of the key-value head for row i // G of the task, where G = heads / kv_heads. One running
softmax merges the prefix and the windows. No prefix is copied and no head is expanded. The prefix of the same rows may
be split over several tasks. Their sums then go to scratch memory, and the second kernel merges them in a fixed order.

Both kernels read lists from one array in device memory. docs/concepts/contract.md describes them, and chunks of caches.
"""

import triton
import triton.language as tl

PAIRS = tl.constexpr(64)
"""Maximum number of pairs of a task."""
MERGE_PAIRS = tl.constexpr(16)
"""Pairs of a program of attention_merge_kernel."""
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def branch_attention_kernel(
    query,  # [rows, heads, size]
    key,  # [rows, kv_heads, size]
    value,
    cache,  # element from which chunks are counted
    work,  # int32: counts of tasks and merges, first words of rows, tasks, merges, chunks and mask, then these lists
    output,  # [rows, heads, size]
    scratch,  # float32 [parts, kv_heads]: sums [PAIRS, size], then PAIRS maxima (of scores times log2(e)), then totals
    heads,
    kv_heads,
    size,
    width,  # numbers between rows of key and value
    cache_row,  # numbers between rows of a chunk
    cache_head,  # numbers between heads of a chunk
    layer,
    scale,  # factor of the scores
    CHANNELS: tl.constexpr,  # a power of two, at least `size`
    COLUMNS: tl.constexpr,  # prefix columns per step: divides past begin and CHUNK_ROWS
    CHUNK_ROWS: tl.constexpr,
    OWN: tl.constexpr,  # packed rows per step
    TILE: tl.constexpr,  # pairs per step
    SLIDING: tl.constexpr,  # True: rows see no cached rows before their starts. The second lists are read
):
    """Compute tasks p, p + programs, ... of one key-value head. The launch grid is (programs, kv_heads)."""
    head = tl.program_id(1)
    group = heads // kv_heads
    factor = scale * _LOG2_E
    channel = tl.arange(0, CHANNELS)
    in_head = channel < size
    if SLIDING:
        work += tl.load(work + 7)
    for task in range(tl.program_id(0), tl.load(work), tl.num_programs(0)):
        entry = work + tl.load(work + 3) + task * 8
        pairs = tl.abs(tl.load(entry + 1)) * group
        for first in range(0, pairs, TILE):
            pair = first + tl.arange(0, TILE)
            inside = (pair < pairs)[:, None] & in_head[None, :]
            row = tl.load(entry) + pair // group
            offsets = (row * heads + head * group + pair % group)[:, None] * size + channel[None, :]
            q = tl.load(query + offsets, mask=inside, other=0.0)
            greatest = tl.full([TILE], float("-inf"), tl.float32)
            total = tl.zeros([TILE], tl.float32)
            mixed = tl.zeros([TILE, CHANNELS], tl.float32)

            chunks = (work + tl.load(work + 5)).to(tl.pointer_type(tl.int64), bitcast=True) + tl.load(entry + 6)
            past_end = tl.load(entry + 3)
            keys = cache + 2 * layer * (CHUNK_ROWS * width) + head * cache_head
            past_begin = tl.load(entry + 2)
            if SLIDING:  # no tile before the first start is read
                seen_from = tl.load(work + tl.load(work + 2) + row * 4 + 3, mask=pair < pairs, other=2**30)
                past_begin = tl.maximum(past_begin, tl.minimum(tl.min(seen_from, 0) // COLUMNS * COLUMNS, past_end))
            following = tl.load(chunks + past_begin // CHUNK_ROWS)
            for start in range(past_begin, past_end, COLUMNS):
                chunk = keys + (following >> 4) * 16
                following = tl.load(chunks + (start + COLUMNS) // CHUNK_ROWS)
                column = tl.arange(0, COLUMNS)
                there = start + column < past_end
                visible = there[None, :]
                if SLIDING:
                    visible = visible & ((start + column)[None, :] >= seen_from[:, None])
                places = (start % CHUNK_ROWS + column)[:, None] * cache_row + channel[None, :]
                present = there[:, None] & in_head[None, :]
                k = tl.load(chunk + places, mask=present, other=0.0)
                v = tl.load(chunk + CHUNK_ROWS * width + places, mask=present, other=0.0)
                greatest, total, mixed = _attended(q, k, v, visible, factor, greatest, total, mixed)

            # Read again, so that no registers hold what follows from it during the loops.
            row = tl.load(entry, volatile=True) + pair // group
            real = pair < pairs
            rows = work + tl.load(work + 2) + row * 4
            window_begin = tl.load(rows, mask=real, other=0)
            line = tl.load(rows + 2, mask=real, other=0)
            mask = (work + tl.load(work + 6)).to(tl.pointer_type(tl.int8), bitcast=True)
            own_end = tl.load(entry + 5)
            for start in tl.range(tl.load(entry + 4), own_end, OWN, num_stages=1):
                column = start + tl.arange(0, OWN)
                there = column < own_end
                place = column[None, :] - window_begin[:, None]
                own = (place >= 0) & (place < tl.load(rows + 1, mask=real, other=0)[:, None]) & there[None, :]
                visible = tl.load(mask + (line[:, None] + place), mask=own, other=0) != 0
                places = (column * width + head * size)[:, None] + channel[None, :]
                present = there[:, None] & in_head[None, :]
                k = tl.load(key + places, mask=present, other=0.0)
                v = tl.load(value + places, mask=present, other=0.0)
                greatest, total, mixed = _attended(q, k, v, visible, factor, greatest, total, mixed)

            row = tl.load(entry, volatile=True) + pair // group
            inside = real[:, None] & in_head[None, :]
            if tl.load(entry + 1, volatile=True) < 0:
                part = _scratch(scratch, tl.load(entry + 7), kv_heads, head, size)
                tl.store(part + (pair * size)[:, None] + channel[None, :], mixed, mask=inside)
                tl.store(part + PAIRS * size + pair, greatest, mask=real)
                tl.store(part + PAIRS * (size + 1) + pair, total, mask=real)
            else:
                offsets = (row * heads + head * group + pair % group)[:, None] * size + channel[None, :]
                attended = mixed * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
                tl.store(output + offsets, attended.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _attended(q, k, v, visible, factor, greatest, total, mixed):
    """Compute one step of the running softmax. A pair that has attended to nothing yet keeps -inf, 0 and 0."""
    scores = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * factor, float("-inf"))
    now = tl.maximum(greatest, tl.max(scores, 1))
    base = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(greatest - base)
    total = total * shrink + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None], input_precision="ieee")
    return now, total, mixed


@triton.jit
def attention_merge_kernel(
    scratch,  # of branch_attention_kernel
    work,
    output,  # [rows, heads, size]
    heads,
    kv_heads,
    size,
    is_sliding,  # 0 or 1: whether the second lists are read
    CHANNELS: tl.constexpr,  # a power of two, at least `size`
):
    """Merge the parts of entries p, p + programs, ... of one key-value head, in the order of the parts.

    The launch grid is (programs, kv_heads, PAIRS / MERGE_PAIRS).
    """
    head = tl.program_id(1)
    group = heads // kv_heads
    channel = tl.arange(0, CHANNELS)
    pair = tl.program_id(2) * MERGE_PAIRS + tl.arange(0, MERGE_PAIRS)
    work += tl.load(work + 7) * is_sliding
    for merge in range(tl.program_id(0), tl.load(work + 1), tl.num_programs(0)):
        entry = work + tl.load(work + 4) + merge * 4
        real = pair < tl.load(entry + 1) * group
        inside = real[:, None] & (channel < size)[None, :]
        greatest = tl.full([MERGE_PAIRS], float("-inf"), tl.float32)
        total = tl.zeros([MERGE_PAIRS], tl.float32)
        mixed = tl.zeros([MERGE_PAIRS, CHANNELS], tl.float32)
        first_part = tl.load(entry + 2)
        for number in range(first_part, first_part + tl.load(entry + 3)):
            part = _scratch(scratch, number, kv_heads, head, size)
            peak = tl.load(part + PAIRS * size + pair, mask=real, other=float("-inf"))
            now = tl.maximum(greatest, peak)
            base = tl.where(now == float("-inf"), 0.0, now)
            shrink = tl.exp2(greatest - base)
            weight = tl.exp2(peak - base)
            total = total * shrink + tl.load(part + PAIRS * (size + 1) + pair, mask=real, other=0.0) * weight
            added = tl.load(part + (pair * size)[:, None] + channel[None, :], mask=inside, other=0.0)
            mixed = mixed * shrink[:, None] + added * weight[:, None]
            greatest = now
        attended = mixed * (1.0 / tl.where(total > 0, total, 1.0))[:, None]
        row = (tl.load(entry) + pair // group) * heads + head * group + pair % group
        tl.store(output + row[:, None] * size + channel[None, :], attended.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _scratch(scratch, part, kv_heads, head, size):
    """Return a pointer to the scratch memory of a part and a head."""
    return scratch + (part * kv_heads + head).to(tl.int64) * (PAIRS * (size + 2))
