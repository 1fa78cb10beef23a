"""What other ways of choosing shapes make of the same forwards. Pure; knows sizes and expected seconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from lopa.bench.gear_costs import GearCosts
from lopa.runtime.contract import TILE
from lopa.runtime.gears import ForwardSizes, Gear, GearTable, sizes_of_gear

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


def outcome_of_gears(
    name: str, gears: Sequence[Gear], forwards: Mapping[ForwardSizes, int], costs: GearCosts
) -> Outcome:
    """Every forward in its gear, or split over several forwards in it."""
    table = GearTable(gears)

    def run(sizes: ForwardSizes) -> list[ForwardSizes]:
        gear = table.gear_for(sizes)
        return [sizes_of_gear(gear)] * gear.forwards(sizes)

    return _outcome(name, {sizes: run(sizes) for sizes in forwards}, forwards, costs)


def rival_outcomes(forwards: Mapping[ForwardSizes, int], limits: ForwardSizes, costs: GearCosts) -> tuple[Outcome, ...]:
    """No padding first, then the ways that others take, the worst last."""
    ways: dict[str, Callable[[ForwardSizes], ForwardSizes]] = {
        "no padding": lambda sizes: sizes,
        "buckets of vllm-ascend (tokens)": _tokens_in_buckets,
        "buckets of xLLM (sequences)": _sequences_in_buckets,
        "powers of two": lambda sizes: _powers_of_two(sizes, limits),
        "always largest": lambda _: limits,
    }
    return tuple(
        _outcome(name, {sizes: [way(sizes)] for sizes in forwards}, forwards, costs) for name, way in ways.items()
    )


def _outcome(
    name: str,
    ran: Mapping[ForwardSizes, Sequence[ForwardSizes]],
    forwards: Mapping[ForwardSizes, int],
    costs: GearCosts,
) -> Outcome:
    """`ran`: the shapes in which each forward ran."""
    count = sum(forwards.values())
    rows = sum(count * sum(map(_rows, ran[sizes])) for sizes, count in forwards.items())
    return Outcome(
        name=name,
        shapes=len({(s.requests, s.branches, s.window, s.prefix) for s in chain.from_iterable(ran.values())}),
        seconds=sum(n * sum(map(costs.seconds, ran[sizes])) for sizes, n in forwards.items()) / count,
        padding=rows / sum(n * _rows(sizes) for sizes, n in forwards.items()) - 1,
    )


def _tokens_in_buckets(sizes: ForwardSizes) -> ForwardSizes:
    """Its tokens rounded up to a bucket; prefixes are not padded there. Padding tokens are dealt to the windows."""
    tokens = _up_to(_VLLM_ASCEND, _rows(sizes))
    return replace(sizes, window=-(-tokens // (sizes.requests * sizes.branches)))


def _sequences_in_buckets(sizes: ForwardSizes) -> ForwardSizes:
    return replace(sizes, requests=1, branches=_up_to(_XLLM, sizes.requests * sizes.branches))


def _powers_of_two(sizes: ForwardSizes, limits: ForwardSizes) -> ForwardSizes:
    """Every axis by itself; a prefix has a tile at least. Never above the limits."""
    return ForwardSizes(
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


def _rows(sizes: ForwardSizes) -> int:
    return sizes.requests * sizes.branches * sizes.window
