"""Branch attention as one Triton kernel, which reads the prefix for all branches at once.

The rows of all branches and of query heads that share a key-value head are packed, in the order of branch, head and
window row. A program computes the attention of ROWS of them to the prefix, then to the windows of their own branches.
Both parts share one running softmax, which merges them by log-sum-exp. No prefix is copied and no head is expanded.
"""

import triton
import triton.language as tl


@triton.jit
def branch_attention_kernel(
    query,  # [R * B, HEADS, W, SIZE]
    key,  # [R * B, KV_HEADS, W, SIZE]
    value,
    past_key,  # [R, KV_HEADS, P, SIZE]
    past_value,
    window_mask,  # bool [R, B, W, W]
    prefix_mask,  # bool [R, P]
    branches,
    width,
    prefix,
    output,  # same shape as query
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SIZE: tl.constexpr,  # D
    SCALE: tl.constexpr,  # factor of the scores
    FACTORS: tl.constexpr,  # type of the products' factors: query's, or a wider one for the interpreter
    CHANNELS: tl.constexpr,  # SIZE rounded up to a power of two
    ROWS: tl.constexpr,  # packed rows per program
    COLUMNS: tl.constexpr,  # keys per step
):
    """Compute branch attention. The launch grid is (tiles of ROWS over B * (HEADS / KV_HEADS) * W, KV_HEADS, R)."""
    head = tl.program_id(1)
    request = tl.program_id(2)
    first = tl.program_id(0) * ROWS
    group: tl.constexpr = HEADS // KV_HEADS
    of_branch = group * width
    packed = first + tl.arange(0, ROWS)
    real = packed < branches * of_branch
    branch = packed // of_branch
    place = packed % width
    member = (packed % of_branch) // width
    channels = tl.arange(0, CHANNELS)
    in_head = channels < SIZE

    rows = (((request * branches + branch) * HEADS + head * group + member) * width + place).to(tl.int64)
    wanted = rows[:, None] * SIZE + channels[None, :]
    inside = real[:, None] & in_head[None, :]
    q = tl.load(query + wanted, mask=inside, other=0.0).to(FACTORS)
    greatest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, CHANNELS], tl.float32)

    for start in range(0, prefix, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        there = columns < prefix
        committed = tl.load(prefix_mask + request * prefix + columns, mask=there, other=0) != 0
        from_row = ((request * KV_HEADS + head) * prefix + columns).to(tl.int64)
        offsets = from_row[:, None] * SIZE + channels[None, :]
        k = tl.load(past_key + offsets, mask=there[:, None] & in_head[None, :], other=0.0).to(FACTORS)
        v = tl.load(past_value + offsets, mask=there[:, None] & in_head[None, :], other=0.0).to(FACTORS)
        visible = real[:, None] & committed[None, :]
        greatest, total, mixed = _attended_tile(q, k, v, visible, greatest, total, mixed, SCALE)

    last = tl.minimum(first + ROWS, branches * of_branch) - 1
    for own in range(first // of_branch, last // of_branch + 1):
        window = request * branches + own
        mine = real & (branch == own)
        for start in range(0, width, COLUMNS):
            columns = start + tl.arange(0, COLUMNS)
            there = columns < width
            mask_rows = (window * width + place).to(tl.int64)
            asked = mine[:, None] & there[None, :]
            visible = tl.load(window_mask + mask_rows[:, None] * width + columns[None, :], mask=asked, other=0) != 0
            from_row = ((window * KV_HEADS + head) * width + columns).to(tl.int64)
            offsets = from_row[:, None] * SIZE + channels[None, :]
            k = tl.load(key + offsets, mask=there[:, None] & in_head[None, :], other=0.0).to(FACTORS)
            v = tl.load(value + offsets, mask=there[:, None] & in_head[None, :], other=0.0).to(FACTORS)
            greatest, total, mixed = _attended_tile(q, k, v, visible, greatest, total, mixed, SCALE)

    attended = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(output + wanted, attended.to(output.dtype.element_ty), mask=inside)


@triton.jit
def _attended_tile(q, k, v, visible, greatest, total, mixed, SCALE: tl.constexpr):
    """Compute one step of the running softmax. A row that has attended to nothing yet keeps -inf, 0 and 0."""
    scores = tl.dot(q, tl.trans(k), input_precision="tf32x3") * SCALE
    scores = tl.where(visible, scores, float("-inf"))
    now = tl.maximum(greatest, tl.max(scores, 1))
    base = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp(scores - base[:, None])
    shrink = tl.exp(greatest - base)
    total = total * shrink + tl.sum(weights, 1)
    mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="tf32x3")
    return now, total, mixed
