"""Other bucketing schemes applied to the same forwards, for comparison. Only sizes and expected seconds are used."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from lopa.bench.buckets.bucket_costs import BucketCosts
from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes

_VLLM_ASCEND = (1, 2, 4, *range(8, 256, 8), *range(256, 1 << 20, 16))
"""Token counts of a forward: 1, 2, 4, then multiples of 8 up to 248, then multiples of 16."""
_XLLM = (1, 2, 4, 8, 16, 32, 48, *range(64, 1 << 16, 16))
"""Sequence counts of a forward. Above its last value, 48, multiples of 16 are assumed."""


@dataclass(frozen=True)
class PaddingOutcome:
    """Result of one bucketing scheme."""

    name: str
    shapes: int
    """Number of distinct shapes that ran. Each must be compiled or captured."""
    seconds: float
    """Mean seconds of a forward."""
    padding: float
    """Padding rows (requests x branches x window) per real row."""


def outcome_of_buckets(name: str, buckets: Sequence[ShapeBucket], forwards: Mapping[Sizes, int]) -> PaddingOutcome:
    """Return the outcome of running each forward in its shape bucket, split if necessary."""
    table = BucketTable(buckets)
    chosen = {sizes: table.bucket_for(sizes) for sizes in forwards}
    return _outcome(
        name,
        forwards,
        ran={sizes: [bucket] * bucket.forwards(sizes) for sizes, bucket in chosen.items()},
        seconds={sizes: bucket.seconds_for(sizes) for sizes, bucket in chosen.items()},
    )


def bucketing_outcomes(forwards: Mapping[Sizes, int], limits: Sizes, costs: BucketCosts) -> tuple[PaddingOutcome, ...]:
    """Return the outcome without padding, then the outcomes of other schemes, the worst last."""
    schemes: dict[str, Callable[[Sizes], Sizes]] = {
        "no padding": lambda sizes: sizes,
        "buckets of vllm-ascend (tokens)": _tokens_in_buckets,
        "buckets of xLLM (sequences)": _sequences_in_buckets,
        "powers of two": lambda sizes: _powers_of_two(sizes, limits),
        "always largest": lambda _: limits,
    }
    outcomes = []
    for name, scheme in schemes.items():
        ran = {sizes: scheme(sizes) for sizes in forwards}
        seconds = {sizes: costs.seconds(shape) for sizes, shape in ran.items()}
        outcomes.append(_outcome(name, forwards, {sizes: [shape] for sizes, shape in ran.items()}, seconds))
    return tuple(outcomes)


def _outcome(
    name: str,
    forwards: Mapping[Sizes, int],
    ran: Mapping[Sizes, Sequence[Sizes]],
    seconds: Mapping[Sizes, float],
) -> PaddingOutcome:
    """Return the outcome. `ran` has the shapes that ran for each forward. `seconds` has their times."""
    rows = sum(count * sum(each.rows for each in ran[sizes]) for sizes, count in forwards.items())
    return PaddingOutcome(
        name=name,
        shapes=len({(s.requests, s.branches, s.window, s.prefix) for s in chain.from_iterable(ran.values())}),
        seconds=sum(count * seconds[sizes] for sizes, count in forwards.items()) / sum(forwards.values()),
        padding=rows / sum(count * sizes.rows for sizes, count in forwards.items()) - 1,
    )


def _tokens_in_buckets(sizes: Sizes) -> Sizes:
    """Return the shape with its tokens rounded up to a bucket. Padding is spread over the windows, not the prefixes."""
    tokens = _bucket_for(_VLLM_ASCEND, sizes.rows)
    return msgspec.structs.replace(sizes, window=-(-tokens // (sizes.requests * sizes.branches)))


def _sequences_in_buckets(sizes: Sizes) -> Sizes:
    return msgspec.structs.replace(sizes, requests=1, branches=_bucket_for(_XLLM, sizes.requests * sizes.branches))


def _powers_of_two(sizes: Sizes, limits: Sizes) -> Sizes:
    """Return the shape with each axis rounded up to a power of two, limited by `limits`. A prefix has at least a
    tile."""
    return Sizes(
        min(_power(sizes.requests), limits.requests),
        min(_power(sizes.branches), limits.branches),
        min(_power(sizes.window), limits.window),
        min(max(TILE, _power(sizes.prefix)), limits.prefix),
        sizes.wanted,
    )


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _bucket_for(buckets: Sequence[int], size: int) -> int:
    return next(bucket for bucket in buckets if bucket >= size)
