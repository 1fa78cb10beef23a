"""A session whose forward sees the shapes of a few gears only. Knows no backend; caches stay where they were."""

from collections.abc import Sequence

from lopa.runtime.accelerator.padding import (
    Part,
    batch_of_part,
    cut_rows,
    cut_statistics,
    joined_answers,
    padded_batch,
    parts_of_forward,
)
from lopa.runtime.accelerator.staged_prefix import StagedPrefix
from lopa.runtime.bundle.gears import Gear, GearTable
from lopa.runtime.contract import Rows, Statistics, WindowBatch, sizes_of_batch
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix


def geared_session(session: HostSession, gears: Sequence[Gear]) -> HostSession:
    """`session`, every later forward of which is padded to one of `gears` (GearPlan.gears), or split into several."""
    session.put_in_front(lambda forward, shape: GearedForward(forward, gears, shape))
    return session


class GearedForward:
    """The Forward protocol: pads every forward to its gear, runs it by `forward`, cuts the answer back."""

    def __init__(self, forward: Forward, gears: Sequence[Gear], shape: CacheShape) -> None:
        self._forward = forward
        self._table = GearTable(gears)
        self._shape = shape
        self._prefixes: dict[tuple[int, int, int], StagedPrefix] = {}
        """By R and P of a gear, and the first request of the part that is staged."""

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Forward.run. Raises BadInputError for a window or a prefix that no gear holds."""
        sizes = sizes_of_batch(batch, prefix.mask.shape[1])
        gear = self._table.gear_for(sizes)
        parts = parts_of_forward(sizes, gear)
        answers = ((part, *self._run_part(batch_of_part(batch, part), prefix, part, gear)) for part in parts)
        if gear.forwards(sizes) > 1:
            return joined_answers(sizes, answers)
        _, statistics, rows = next(answers)
        return statistics, rows

    def forget_prefix(self) -> None:
        """Hold no reference to the prefix of an earlier run."""
        self._prefixes.clear()
        self._forward.forget_prefix()

    def close(self) -> None:
        """Free the forward and the staged prefixes."""
        self._prefixes.clear()
        self._forward.close()

    def _run_part(
        self, batch: WindowBatch, prefix: Prefix, part: Part, gear: Gear
    ) -> tuple[Statistics, tuple[Rows, ...]]:
        """One forward in the shape of `gear`; `batch` has the requests and branches of `part` only."""
        sizes = sizes_of_batch(batch, prefix.mask.shape[1])
        statistics, rows = self._forward.run(padded_batch(batch, gear), self._prefix(prefix, part, gear))
        return cut_statistics(statistics, sizes), cut_rows(rows, sizes)

    def _prefix(self, prefix: Prefix, part: Part, gear: Gear) -> Prefix:
        """The prefix of the requests of `part` in the shape of `gear`; as it is where that is its shape."""
        if prefix.mask.shape == (gear.requests, gear.prefix):
            return prefix
        key = (gear.requests, gear.prefix, part[0].start)
        if key not in self._prefixes:
            self._prefixes[key] = StagedPrefix(self._shape, gear.requests, gear.prefix)
        return self._prefixes[key].staged(prefix, part[0])
