"""Token statistics as two Triton kernels. The logits stay in registers, tile by tile, and are never written.

The first kernel works on splits of the vocabulary. For each row it outputs the largest logit and the best K candidates.
It also outputs the sum of exp(z - largest) and the sum of (z - largest) exp(z - largest). The second kernel merges the
splits of a row. Candidates are 64-bit keys. The high half sorts like the logits, and the low half is the negated id.
The K largest keys are therefore the K best candidates, equal ones by lower id.
"""

import triton
import triton.language as tl


@triton.jit
def statistics_partials_kernel(
    hidden,  # [rows, HIDDEN]
    weight,  # [HIDDEN, VOCABULARY]
    temperature,  # float32 [rows / rows_per_temperature]
    rows,
    rows_per_temperature,
    greatest_of_splits,  # float32 [rows, SPLITS]
    total_of_splits,  # float32 [rows, SPLITS]
    weighted_of_splits,  # float32 [rows, SPLITS]
    logit_of_splits,  # float32 [rows, SPLITS, TOP]
    id_of_splits,  # int32 [rows, SPLITS, TOP]
    HIDDEN: tl.constexpr,
    VOCABULARY: tl.constexpr,
    SPLITS: tl.constexpr,
    TOP: tl.constexpr,  # candidates, a power of two
    FACTORS: tl.constexpr,  # type of the products' factors: hidden's, or a wider one for the interpreter
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # columns of the vocabulary per step
    INNER: tl.constexpr,  # channels of HIDDEN per step
):
    """Compute the statistics of each split.

    The launch grid is (tiles of ROWS, SPLITS), so programs of a split run together and share its weights in the cache.
    """
    split = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    inner = tl.arange(0, INNER)
    divisor = tl.load(temperature + row // rows_per_temperature, mask=real, other=1.0)
    hidden_rows = row.to(tl.int64)[:, None] * HIDDEN
    greatest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS], tl.float32)
    best = tl.full([ROWS, TOP], -(2**63), tl.int64)

    tiles: tl.constexpr = (VOCABULARY + COLUMNS - 1) // COLUMNS
    for tile in range(tiles * split // SPLITS, tiles * (split + 1) // SPLITS):
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        there = column < VOCABULARY
        z = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, HIDDEN, INNER):
            channel = start + inner
            inside = channel < HIDDEN
            h = tl.load(hidden + hidden_rows + channel[None, :], mask=real[:, None] & inside[None, :], other=0.0)
            offsets = channel.to(tl.int64)[:, None] * VOCABULARY + column[None, :]
            w = tl.load(weight + offsets, mask=inside[:, None] & there[None, :], other=0.0)
            z = tl.dot(h.to(FACTORS), w.to(FACTORS), z, input_precision="tf32x3")
        z = tl.where(there[None, :], z / divisor[:, None], float("-inf"))
        greatest, total, weighted = _merged_sums(
            greatest, total, weighted, tl.max(z, 1), z, tl.where(there[None, :], 1.0, 0.0), tl.zeros_like(z)
        )
        keys = tl.where(there[None, :], _keys(z, column[None, :]), -(2**63))
        best = _best_keys(keys, best, TOP)

    slot = row.to(tl.int64) * SPLITS + split
    tl.store(greatest_of_splits + slot, greatest, mask=real)
    tl.store(total_of_splits + slot, total, mask=real)
    tl.store(weighted_of_splits + slot, weighted, mask=real)
    slots = slot[:, None] * TOP + tl.arange(0, TOP)[None, :]
    tl.store(logit_of_splits + slots, _logits(best), mask=real[:, None])
    tl.store(id_of_splits + slots, _ids(best), mask=real[:, None])


@triton.jit
def statistics_merge_kernel(
    greatest_of_splits,
    total_of_splits,
    weighted_of_splits,
    logit_of_splits,
    id_of_splits,
    ids,  # int32 [rows, TOP]
    logprobs,  # float32 [rows, TOP]
    entropy,  # float32 [rows]
    SPLITS: tl.constexpr,
    TOP: tl.constexpr,
    PLACES: tl.constexpr,  # SPLITS rounded up to a power of two
):
    """Merge the splits of each row. The launch grid is (rows)."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, PLACES)
    there = split < SPLITS
    of_row = row * SPLITS + split
    greatest = tl.load(greatest_of_splits + of_row, mask=there, other=float("-inf"))[None, :]
    total = tl.load(total_of_splits + of_row, mask=there, other=0.0)[None, :]
    weighted = tl.load(weighted_of_splits + of_row, mask=there, other=0.0)[None, :]
    top, whole, mean = _merged_sums(
        tl.full([1], float("-inf"), tl.float32),
        tl.zeros([1], tl.float32),
        tl.zeros([1], tl.float32),
        tl.max(greatest, 1),
        greatest,
        total,
        weighted,
    )
    place = tl.arange(0, PLACES * TOP)
    known = place < SPLITS * TOP
    logit = tl.load(logit_of_splits + row * SPLITS * TOP + place, mask=known, other=float("-inf"))
    number = tl.load(id_of_splits + row * SPLITS * TOP + place, mask=known, other=0)
    # Unused candidates of a split with fewer than TOP tokens have a negative id.
    keys = tl.where(known & (number >= 0), _keys(logit, number), -(2**63))
    best = _best_keys(keys[None, :], tl.full([1, TOP], -(2**63), tl.int64), TOP)
    slots = row * TOP + tl.arange(0, TOP)[None, :]
    tl.store(ids + slots, _ids(best))
    tl.store(logprobs + slots, _logits(best) - top[:, None] - tl.log(whole)[:, None])
    tl.store(entropy + row + tl.arange(0, 1), tl.log(whole) - mean / whole)


@triton.jit
def _merged_sums(greatest, total, weighted, peak, peaks, totals, weighteds):
    """Merge sums over the parts of a row, relative to the largest logit.

    A part [rows, parts] has a peak, a total, and a weighted sum relative to that peak. A single logit is a part with
    the sums 1 and 0. Absent parts have the peak -inf and the sums 0. `peak` is the largest of `peaks`.
    """
    now = tl.maximum(greatest, peak)
    base = tl.where(now == float("-inf"), 0.0, now)
    down = tl.where(peaks == float("-inf"), 0.0, peaks - base[:, None])
    before = tl.where(greatest == float("-inf"), 0.0, greatest - base)
    shrunk = total * tl.exp(before)
    weighted = weighted * tl.exp(before) + shrunk * before
    scale = tl.exp(down)
    weighted += tl.sum(scale * (weighteds + totals * down), 1)
    return now, shrunk + tl.sum(totals * scale, 1), weighted


@triton.jit
def _keys(z, column):
    """Return 64-bit integers that sort like z, and for equal z by descending column."""
    bits = tl.where(z == 0.0, 0.0, z).to(tl.int32, bitcast=True)  # turns -0 into 0
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)


@triton.jit
def _best_keys(keys, known, TOP: tl.constexpr):
    """Return the TOP largest of `keys` and `known`, in descending order.

    They are found and removed one at a time, since no two keys are equal.
    """
    place = tl.arange(0, TOP)[None, :]
    best = tl.full(known.shape, -(2**63), tl.int64)
    for k in tl.static_range(TOP):
        greatest = tl.maximum(tl.max(keys, 1), tl.max(known, 1))[:, None]
        keys = tl.where(keys == greatest, -(2**63), keys)
        known = tl.where(known == greatest, -(2**63), known)
        best = tl.where(place == k, greatest, best)
    return best


@triton.jit
def _logits(keys):
    order = (keys >> 32).to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _ids(keys):
    """Return the ids of keys, negative for unused candidates."""
    return tl.where(keys == -(2**63), -1, 0x7FFFFFFF - (keys & 0x7FFFFFFF).to(tl.int32))
