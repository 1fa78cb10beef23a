"""What other ways of choosing shapes make of the same forwards. Pure; knows sizes and expected seconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from lopa.bench.buckets.costs import BucketCosts
from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes

_VLLM_ASCEND = (1, 2, 4, *range(8, 256, 8), *range(256, 1 << 20, 16))
"""Tokens of a forward: 1, 2, 4, then by 8 to 255, then by 16."""
_XLLM = (1, 2, 4, 8, 16, 32, 48, *range(64, 1 << 16, 16))
"""Sequences of a forward; what is above its last, 48, is taken to go on by 16."""


@dataclass(frozen=True)
class Outcome:
    """One way of choosing shapes."""

    name: str
    shapes: int
    """Different shapes that ran: what has to be compiled, or captured, and kept."""
    seconds: float
    """Mean of a forward."""
    padding: float
    """Padding rows (requests x branches x window) for each real one."""


def outcome_of_buckets(name: str, buckets: Sequence[ShapeBucket], forwards: Mapping[Sizes, int]) -> Outcome:
    """Every forward in its bucket, or split over several forwards in it."""
    table = BucketTable(buckets)
    chosen = {sizes: table.bucket_for(sizes) for sizes in forwards}
    return _outcome(
        name,
        forwards,
        ran={sizes: [bucket] * bucket.forwards(sizes) for sizes, bucket in chosen.items()},
        seconds={sizes: bucket.seconds_for(sizes) for sizes, bucket in chosen.items()},
    )


def rival_outcomes(forwards: Mapping[Sizes, int], limits: Sizes, costs: BucketCosts) -> tuple[Outcome, ...]:
    """No padding first, then the ways that others take, the worst last."""
    ways: dict[str, Callable[[Sizes], Sizes]] = {
        "no padding": lambda sizes: sizes,
        "buckets of vllm-ascend (tokens)": _tokens_in_buckets,
        "buckets of xLLM (sequences)": _sequences_in_buckets,
        "powers of two": lambda sizes: _powers_of_two(sizes, limits),
        "always largest": lambda _: limits,
    }
    outcomes = []
    for name, way in ways.items():
        ran = {sizes: way(sizes) for sizes in forwards}
        seconds = {sizes: costs.seconds(shape) for sizes, shape in ran.items()}
        outcomes.append(_outcome(name, forwards, {sizes: [shape] for sizes, shape in ran.items()}, seconds))
    return tuple(outcomes)


def _outcome(
    name: str,
    forwards: Mapping[Sizes, int],
    ran: Mapping[Sizes, Sequence[Sizes]],
    seconds: Mapping[Sizes, float],
) -> Outcome:
    """`ran`: the shapes in which each forward ran, `seconds` what it took."""
    rows = sum(count * sum(each.rows for each in ran[sizes]) for sizes, count in forwards.items())
    return Outcome(
        name=name,
        shapes=len({(s.requests, s.branches, s.window, s.prefix) for s in chain.from_iterable(ran.values())}),
        seconds=sum(count * seconds[sizes] for sizes, count in forwards.items()) / sum(forwards.values()),
        padding=rows / sum(count * sizes.rows for sizes, count in forwards.items()) - 1,
    )


def _tokens_in_buckets(sizes: Sizes) -> Sizes:
    """Its tokens rounded up to a bucket; prefixes are not padded there. Padding tokens are dealt to the windows."""
    tokens = _up_to(_VLLM_ASCEND, sizes.rows)
    return msgspec.structs.replace(sizes, window=-(-tokens // (sizes.requests * sizes.branches)))


def _sequences_in_buckets(sizes: Sizes) -> Sizes:
    return msgspec.structs.replace(sizes, requests=1, branches=_up_to(_XLLM, sizes.requests * sizes.branches))


def _powers_of_two(sizes: Sizes, limits: Sizes) -> Sizes:
    """Every axis by itself; a prefix has a tile at least. Never above the limits."""
    return Sizes(
        min(_power(sizes.requests), limits.requests),
        min(_power(sizes.branches), limits.branches),
        min(_power(sizes.window), limits.window),
        min(max(TILE, _power(sizes.prefix)), limits.prefix),
        sizes.wanted,
    )


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _up_to(buckets: Sequence[int], size: int) -> int:
    return next(bucket for bucket in buckets if bucket >= size)
