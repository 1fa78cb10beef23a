"""Token statistics of logits as two Triton kernels, which read the logits once.

The first kernel works on splits of the vocabulary, the second merges the splits of a row. A split has the largest z,
the sum of exp(z - largest), the sum of (z - largest) * exp(z - largest), and its best candidates, in any order. Here z
are the logits divided by the temperature. Candidates are compared as 64-bit keys. The high half sorts like z, with NaN
above infinity, and the low half is the negated id. The K largest keys are therefore the K best candidates, equal ones
by lower id.
"""

import triton
import triton.language as tl

_UNUSED = tl.constexpr(-(2**31))
"""High half of the keys of unused candidates. No number has it."""


@triton.jit
def statistics_partials_kernel(
    logits,  # [rows, vocabulary]
    temperature,  # float32 [rows / rows_per_temperature]
    rows_per_temperature,
    vocabulary,
    columns_per_split,
    greatest_of_splits,  # float32 [rows, splits]
    total_of_splits,  # float32 [rows, splits]
    weighted_of_splits,  # float32 [rows, splits]
    ids,  # int32 [rows, splits, TOP], -1: unused
    values,  # float32 [rows, splits, TOP]: z of the candidates
    TOP: tl.constexpr,  # candidates, a power of two
    BLOCK: tl.constexpr,  # columns per step, a power of two
):
    """Compute the statistics of one split of one row. The launch grid is (rows, splits).

    Loads are wide if the vocabulary and columns_per_split are multiples of 16.
    """
    row = tl.program_id(0)
    split = tl.program_id(1)
    divisor = tl.load(temperature + row // rows_per_temperature)
    if (vocabulary | columns_per_split) % 16 == 0:
        aligned = vocabulary // 16 * 16
        begin = split * (columns_per_split // 16 * 16)
        end = tl.minimum(begin + columns_per_split, vocabulary)
        greatest, total, weighted, best = _split(logits + row.to(tl.int64) * aligned, divisor, begin, end, TOP, BLOCK)
    else:
        begin = split * columns_per_split
        end = tl.minimum(begin + columns_per_split, vocabulary)
        greatest, total, weighted, best = _split(
            logits + row.to(tl.int64) * vocabulary, divisor, begin, end, TOP, BLOCK
        )
    slot = row * tl.num_programs(1) + split
    tl.store(greatest_of_splits + slot, greatest)
    tl.store(total_of_splits + slot, total)
    tl.store(weighted_of_splits + slot, weighted)
    slots = slot * TOP + tl.arange(0, TOP)
    tl.store(ids + slots, _ids(best))
    tl.store(values + slots, _numbers(best))


@triton.jit
def _split(logits, divisor, begin, end, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sums of columns begin .. end of a row, and the keys of the best candidates."""
    greatest = float("-inf")
    total = 0.0
    weighted = 0.0
    # Keys of unused candidates differ, and lie above those of removed columns.
    best = tl.full([TOP], -(2**63) + 2**32 - 1, tl.int64) - tl.arange(0, TOP)
    worst = tl.min(best, 0)
    for start in range(begin, end, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = column < end
        z = tl.load(logits + column, mask=there, other=float("-inf")).to(tl.float32) / divisor
        order = tl.where(there, _orders(z), _UNUSED)
        key = _best_key(order, column)
        greatest, total, weighted = _merged(
            greatest, total, weighted, z, tl.where(there, 1.0, 0.0), tl.zeros_like(z), _numbers(key)
        )
        while key > worst:
            best = tl.where(best == worst, key, best)
            worst = tl.min(best, 0)
            order = tl.where(column == _ids(key), _UNUSED, order)
            key = _best_key(order, column)
    return greatest, total, weighted, best


@triton.jit
def statistics_merge_kernel(
    greatest_of_splits,  # as in statistics_partials_kernel
    total_of_splits,
    weighted_of_splits,
    ids,
    values,
    splits,
    topk_ids,  # int64 [rows, TOP]
    topk_logprobs,  # float32 [rows, TOP]
    entropy,  # float32 [rows]
    TOP: tl.constexpr,
    PLACES: tl.constexpr,  # a power of two, at least `splits`
):
    """Merge the splits of a row. The launch grid is (rows)."""
    row = tl.program_id(0)
    split = tl.arange(0, PLACES)
    slot = row * splits + split
    peaks = tl.load(greatest_of_splits + slot, mask=split < splits, other=float("-inf"))
    totals = tl.load(total_of_splits + slot, mask=split < splits, other=0.0)
    weighteds = tl.load(weighted_of_splits + slot, mask=split < splits, other=0.0)
    greatest, total, weighted = _merged(float("-inf"), 0.0, 0.0, peaks, totals, weighteds, tl.max(peaks, 0))
    log = tl.log(total)
    tl.store(entropy + row, log - weighted / total)

    place = tl.arange(0, PLACES * TOP)
    known = place < splits * TOP
    candidate = tl.load(ids + row * splits * TOP + place, mask=known, other=-1)
    value = tl.load(values + row * splits * TOP + place, mask=known, other=0.0)
    keys = _keys(tl.where(candidate >= 0, _orders(value), _UNUSED), tl.maximum(candidate, 0))
    for k in range(TOP):
        key = tl.max(keys, 0)
        keys = tl.where(keys == key, -(2**63), keys)
        tl.store(topk_ids + row * TOP + k, _ids(key).to(tl.int64))
        tl.store(topk_logprobs + row * TOP + k, _numbers(key) - greatest - log)


@triton.jit
def _merged(greatest, total, weighted, peaks, totals, weighteds, peak):
    """Add parts to the sums of a row. Sums are relative to the largest z.

    A part has a largest z, a total, and a weighted sum relative to that z. A single z is a part with the sums 1 and 0.
    Parts of -inf add nothing. `peak` is the largest of `peaks`.
    """
    now = tl.maximum(greatest, peak)
    base = tl.where(now == float("-inf"), 0.0, now)
    before = tl.where(greatest == float("-inf"), 0.0, greatest - base)
    shrunk = total * tl.exp(before)
    weighted = weighted * tl.exp(before) + shrunk * before
    down = tl.where(peaks == float("-inf"), 0.0, peaks - base)
    scale = tl.where(peaks == float("-inf"), 0.0, tl.exp(down))
    weighted += tl.sum(scale * (weighteds + totals * down), 0)
    return now, shrunk + tl.sum(totals * scale, 0), weighted


@triton.jit
def _orders(z):
    """Return int32 numbers that sort like z: both zeros are equal, and any NaN is above infinity."""
    bits = tl.where(z == 0.0, 0.0, z).to(tl.int32, bitcast=True)
    return tl.where(z == z, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FC00000)


@triton.jit
def _keys(order, column):
    """Return keys. The low half is 2**31 - 1 - column."""
    return (order.to(tl.int64) << 32) | (column ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def _best_key(order, column):
    """Return the largest key of a block."""
    greatest = tl.max(order, 0)
    return _keys(greatest, tl.min(tl.where(order == greatest, column, 0x7FFFFFFF), 0))


@triton.jit
def _numbers(keys):
    """Return the numbers z of keys."""
    order = (keys >> 32).to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _ids(keys):
    """Return the ids of keys, -1 for unused candidates."""
    return tl.where((keys >> 32).to(tl.int32) == _UNUSED, -1, ((keys & 0x7FFFFFFF) ^ 0x7FFFFFFF).to(tl.int32))
