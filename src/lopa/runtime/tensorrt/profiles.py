"""The optimization profiles of a TensorRT engine: one of exact shapes for each gear, and one range for long prompts.

Which profile runs a forward, and to which shape it is padded there. Pure; knows no TensorRT.

A gear costs its whole shape whatever part of it is real. That pays for windows of a decode, which come back to few
sizes; the first window of a request is as long as its prompt, runs once, and would mostly be padding in the one gear
that holds the longest. So a one-branch window longer than that of every other gear runs in the range, nearly as it is.
"""

from collections.abc import Sequence

import msgspec

from lopa.runtime.bundle.gears import Gear, GearTable, gear_from_sizes
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes

WINDOW_MULTIPLE = 64
"""Windows in the range are padded to it: an engine works out memory and kernels once for each shape that it sees."""


class ProfileRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shapes that one profile takes, axis by axis."""

    least: Sizes
    best: Sizes
    """What kernels are chosen for."""
    most: Sizes

    def holds(self, gear: Gear) -> bool:
        """Whether the shape of `gear` is one of them."""
        return all(
            getattr(self.least, name) <= getattr(gear, name) <= getattr(self.most, name)
            for name in Sizes.__struct_fields__
        )


def exact_range(gear: Gear) -> ProfileRange:
    """The profile of a gear: its shape alone."""
    return ProfileRange(least=gear, best=gear, most=gear)


def prefill_range(gears: Sequence[Gear]) -> ProfileRange:
    """One branch, windows longer than all but the longest of `gears`, prefixes and requests as those have them."""
    windows = sorted({gear.window for gear in gears})
    shortest = windows[-2] + 1 if len(windows) > 1 else windows[-1]
    middle = min(_up(-(-(shortest + windows[-1]) // 2), WINDOW_MULTIPLE), windows[-1])
    wanted = max(gear.wanted for gear in gears)
    return ProfileRange(
        least=Sizes(requests=1, branches=1, window=shortest, prefix=TILE, wanted=1),
        best=Sizes(requests=1, branches=1, window=middle, prefix=TILE, wanted=min(middle, wanted)),
        most=Sizes(
            requests=max(gear.requests for gear in gears),
            branches=1,
            window=windows[-1],
            prefix=max(gear.prefix for gear in gears),
            wanted=wanted,
        ),
    )


def profiles_of_gears(gears: Sequence[Gear], prefill: ProfileRange) -> list[ProfileRange]:
    """All profiles of an engine in their order: those of the gears, then the range."""
    return [*(exact_range(gear) for gear in gears), prefill]


class ProfileTable:
    """Chooses the profile of a forward."""

    def __init__(self, gears: Sequence[Gear], prefill: ProfileRange) -> None:
        self._gears = list(gears)
        self._table = GearTable(gears)
        self._prefixes = sorted({TILE, *(gear.prefix for gear in gears)})
        self._prefill = prefill

    def profile_for(self, sizes: Sizes) -> tuple[int, Gear]:
        """Number of the profile that runs `sizes`, and the shape to pad to: in parts where it is a smaller gear.

        Raises BadInputError as GearTable.gear_for does, when no profile holds the window, the prefix or what is wanted.
        """
        gear = self._table.gear_for(sizes)
        most = self._prefill.most
        in_range = (
            sizes.requests <= most.requests and sizes.branches == 1 and sizes.window >= self._prefill.least.window
        )
        if not in_range:
            return self._gears.index(gear), gear
        window = min(_up(sizes.window, WINDOW_MULTIPLE), most.window)
        # A cache in device memory has the prefix of a gear, and is taken as it is then.
        prefix = next(prefix for prefix in self._prefixes if prefix >= sizes.prefix)
        shape = Sizes(sizes.requests, 1, window, prefix, min(window, most.wanted))
        return len(self._gears), gear_from_sizes(shape, gear.seconds)


def _up(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple
