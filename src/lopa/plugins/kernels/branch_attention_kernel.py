"""Branch attention as two Triton kernels, which work on a list of tasks and read each row of a cache for all branches.

A task has a few packed rows, a part of their prefix and a range of packed rows that contains their windows. Pair i of
a task is query head i % G of the key-value head for row i // G of the task, where G = heads / kv_heads. One running
softmax merges the prefix and the windows. No prefix is copied and no head is expanded. The prefix of the same rows may
be split over several tasks. Their sums then go to scratch memory, and the second kernel merges them in a fixed order.
"""

import triton
import triton.language as tl

PAIRS = tl.constexpr(64)
"""Maximum number of pairs of a task."""
MERGE_PAIRS = tl.constexpr(16)
"""Pairs that a program of attention_merge_kernel merges at once."""
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def branch_attention_kernel(
    query,  # [rows, heads, size]
    key,  # [rows / width, kv_heads, width, size]: packed row m is row m % width of window m // width
    value,
    past_key,  # chunks of [kv_heads, chunk_rows, size], where `chunks` says
    past_value,
    window_mask,  # bool, flat
    prefix_mask,  # bool, flat
    rows,  # int32 [rows, 3]: first row of the row's window, its length, offset of the row's line in window_mask
    tasks,  # int32 [count, 8]: first row, rows (negative: part of several), past begin, past end, own begin, own end,
    # number of the first chunk, offset in prefix_mask
    chunks,  # int64: offsets of chunks from past_key and past_value, multiples of 16
    count,
    output,  # [rows, heads, size]
    scratch,  # float32 [count, kv_heads]: sums [PAIRS, size], then PAIRS maxima (of scores times log2(e)), then totals
    heads,
    kv_heads,
    size,
    width,
    chunk_rows,
    past_head_stride,  # elements between the heads of a chunk
    scale,  # factor of the scores
    CHANNELS: tl.constexpr,  # a power of two, at least `size`
    COLUMNS: tl.constexpr,  # prefix columns per step: divides past begin, and chunk_rows unless there is one chunk
    OWN: tl.constexpr,  # packed rows per step
    TILE: tl.constexpr,  # pairs per step
):
    """Compute tasks p, p + programs, ... of one key-value head. The launch grid is (programs, kv_heads)."""
    head = tl.program_id(1)
    group = heads // kv_heads
    rows_of_chunk = tl.maximum(chunk_rows, 1)
    factor = scale * _LOG2_E
    channel = tl.arange(0, CHANNELS)
    in_head = channel < size
    for task in range(tl.program_id(0), count, tl.num_programs(0)):
        entry = tasks + task * 8
        signed_rows = tl.load(entry + 1)
        past_begin = tl.load(entry + 2)
        past_end = tl.load(entry + 3)
        own_begin = tl.load(entry + 4)
        own_end = tl.load(entry + 5)
        first_chunk = tl.load(entry + 6)
        committed = prefix_mask + tl.load(entry + 7)
        pairs = tl.abs(signed_rows) * group
        for first in range(0, pairs, TILE):
            pair = first + tl.arange(0, TILE)
            inside = (pair < pairs)[:, None] & in_head[None, :]
            row = tl.load(entry) + pair // group
            offsets = (row * heads + head * group + pair % group)[:, None] * size + channel[None, :]
            q = tl.load(query + offsets, mask=inside, other=0.0)
            greatest = tl.full([TILE], float("-inf"), tl.float32)
            total = tl.zeros([TILE], tl.float32)
            mixed = tl.zeros([TILE, CHANNELS], tl.float32)

            for chunk in range(past_begin // rows_of_chunk, tl.cdiv(past_end, rows_of_chunk)):
                begin = chunk * rows_of_chunk
                base = tl.multiple_of(tl.load(chunks + first_chunk + chunk), 16) + head.to(tl.int64) * past_head_stride
                for start in range(tl.maximum(past_begin, begin), tl.minimum(past_end, begin + rows_of_chunk), COLUMNS):
                    column = start + tl.arange(0, COLUMNS)
                    there = column < past_end
                    visible = tl.load(committed + column, mask=there, other=0) != 0
                    places = (column - begin)[:, None] * size + channel[None, :]
                    present = there[:, None] & in_head[None, :]
                    k = tl.load(past_key + base + places, mask=present, other=0.0)
                    v = tl.load(past_value + base + places, mask=present, other=0.0)
                    greatest, total, mixed = _attended(q, k, v, visible[None, :], factor, greatest, total, mixed)

            # Read again, so that no registers hold what follows from it during the loops above.
            row = tl.load(entry, volatile=True) + pair // group
            real = pair < pairs
            window_begin = tl.load(rows + row * 3, mask=real, other=0)
            window_length = tl.load(rows + row * 3 + 1, mask=real, other=0)
            line = tl.load(rows + row * 3 + 2, mask=real, other=0)
            for start in tl.range(own_begin, own_end, OWN, num_stages=1):
                column = start + tl.arange(0, OWN)
                there = column < own_end
                place = column[None, :] - window_begin[:, None]
                own = (place >= 0) & (place < window_length[:, None]) & there[None, :]
                visible = tl.load(window_mask + (line[:, None] + place), mask=own, other=0) != 0
                key_row = (column // width * kv_heads + head) * width + column % width
                places = key_row[:, None] * size + channel[None, :]
                present = there[:, None] & in_head[None, :]
                k = tl.load(key + places, mask=present, other=0.0)
                v = tl.load(value + places, mask=present, other=0.0)
                greatest, total, mixed = _attended(q, k, v, visible, factor, greatest, total, mixed)

            row = tl.load(entry, volatile=True) + pair // group
            inside = real[:, None] & in_head[None, :]
            if signed_rows < 0:
                part = _scratch(scratch, task, kv_heads, head, size)
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
    merges,  # int32 [merges, 4]: first row, rows, first task, number of tasks
    output,  # [rows, heads, size]
    heads,
    kv_heads,
    size,
    CHANNELS: tl.constexpr,  # a power of two, at least `size`
):
    """Merge the parts of some rows, in the order of the tasks.

    The launch grid is (merges, kv_heads, any number up to PAIRS / MERGE_PAIRS). Programs along z share the pairs.
    """
    entry = merges + tl.program_id(0) * 4
    first_row = tl.load(entry)
    pairs = tl.load(entry + 1) * (heads // kv_heads)
    first_task = tl.load(entry + 2)
    parts = tl.load(entry + 3)
    head = tl.program_id(1)
    group = heads // kv_heads
    channel = tl.arange(0, CHANNELS)
    for first in range(tl.program_id(2) * MERGE_PAIRS, pairs, tl.num_programs(2) * MERGE_PAIRS):
        pair = first + tl.arange(0, MERGE_PAIRS)
        real = pair < pairs
        inside = real[:, None] & (channel < size)[None, :]
        greatest = tl.full([MERGE_PAIRS], float("-inf"), tl.float32)
        total = tl.zeros([MERGE_PAIRS], tl.float32)
        mixed = tl.zeros([MERGE_PAIRS, CHANNELS], tl.float32)
        for task in range(first_task, first_task + parts):
            part = _scratch(scratch, task, kv_heads, head, size)
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
        row = (first_row + pair // group) * heads + head * group + pair % group
        tl.store(output + row[:, None] * size + channel[None, :], attended.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _scratch(scratch, task, kv_heads, head, size):
    """Return a pointer to the scratch memory of a task and a head."""
    return scratch + (task * kv_heads + head).to(tl.int64) * (PAIRS * (size + 2))
