"""What a decode would take on N devices: the steps of a real decode, replayed with measured costs (docs/scaling.md).

Pure: knows numbers only. Does not measure, and does not know where the costs come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lopa.bench.forward.work import ForwardShape
from lopa.bench.scaling.links import Link
from lopa.runtime.bundle.costs import CostTable
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.batch_parts import shares_of_branches

EngineSeconds = Callable[[ForwardShape], float]
_ID_BYTES = 8
"""Of a token id, a position, and the number of a row."""


@dataclass(frozen=True)
class MessageSizes:
    """Bytes that travel between devices; those of a question follow from the contract."""

    cache_row: int
    """Keys and values of one committed row in all layers."""
    answer_row: int
    """What comes back for one row whose statistics are wanted."""

    def question(self, shape: ForwardShape, branches: int) -> int:
        """Bytes of the windows of `branches` branches of `shape`: ids, positions, mask, wanted rows."""
        return branches * (2 * _ID_BYTES * shape.window + shape.window**2 + _ID_BYTES * shape.wanted)

    def answer(self, shape: ForwardShape, branches: int) -> int:
        """Bytes of the statistics of `branches` branches of `shape`."""
        return branches * shape.wanted * self.answer_row


def sizes_from_manifest(manifest: Manifest) -> MessageSizes:
    """The messages of a bundle: K candidates (id, log-probability) and an entropy for each wanted row."""
    sizes = manifest.dimensions
    item = 4 if manifest.dtype == "float32" else 2
    return MessageSizes(
        cache_row=2 * sizes.layers * sizes.kv_heads * sizes.head_size * item, answer_row=TOP_K * (_ID_BYTES + 4) + 4
    )


@dataclass(frozen=True)
class StepParts:
    """Seconds of one step; together they are the step."""

    windows: float
    engine: float
    """Of the slowest device."""
    gather: float
    """The forward beyond the engine."""
    select: float
    commit: float
    spawn: float

    @property
    def host(self) -> float:
        """Building windows and branches."""
        return self.windows + self.spawn

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.windows + self.engine + self.gather + self.select + self.commit + self.spawn


@dataclass(frozen=True)
class RecordedStep:
    """One step of a real decode on one device."""

    shape: ForwardShape
    """Of its forward, all branches."""
    committed: int
    """Rows."""
    shared: bool
    """The committed rows are the same on every branch (lopa.runtime.contract.batch_parts)."""
    parts: StepParts


@dataclass(frozen=True)
class EngineTable:
    """A forward's seconds from two cost tables: one for every window row wanted, one for a single row of each branch.

    The statistics of a row cost the same for each row, so the time is linear in the rows wanted.
    """

    every_row: CostTable
    one_row: CostTable

    def seconds(self, shape: ForwardShape) -> float:
        """Expected seconds of a forward of `shape`."""
        asked = shape.branches, shape.window, shape.prefix
        one, every = self.one_row.seconds(*asked), self.every_row.seconds(*asked)
        share = (shape.wanted - 1) / (shape.window - 1) if shape.window > 1 else 1.0
        return one + min(share, 1.0) * (every - one)


def device_shape(shape: ForwardShape, devices: int) -> ForwardShape:
    """What the device with the most branches of a forward computes."""
    first = shares_of_branches(shape.branches, devices)[0]
    return ForwardShape(first.stop - first.start, shape.window, shape.prefix, shape.wanted)


def steps_on_devices(
    steps: Sequence[RecordedStep],
    devices: int,
    link: Link,
    sizes: MessageSizes,
    engine: EngineSeconds,
    *,
    slowdown: float = 1.0,
) -> list[StepParts]:
    """The steps of one decode as they would be on `devices` devices joined by `link`, the first of them the host's own.

    `engine` is the time of a forward on one device while the others rest; `slowdown` is how many times longer it takes
    while they compute. Rows that the winner's device sends travel beside the host's work; the next forward waits for
    what is left of it.
    """
    late = 0.0
    predicted = []
    for step in steps:
        took = step.parts
        waiting = max(0.0, late - took.windows)
        predicted.append(
            StepParts(
                windows=took.windows,
                engine=engine(device_shape(step.shape, devices))
                * (slowdown if min(devices, step.shape.branches) > 1 else 1.0),
                gather=took.gather + message_seconds(step.shape, devices, link, sizes) + waiting,
                select=took.select,
                commit=took.commit,
                spawn=took.spawn,
            )
        )
        late = max(0.0, transfer_seconds(step, devices, link, sizes) - took.spawn)
    return predicted


def message_seconds(shape: ForwardShape, devices: int, link: Link, sizes: MessageSizes) -> float:
    """Sending the windows and receiving the statistics of all devices but the first.

    Latencies of different devices pass at the same time; their bytes go through the host's one link one after another.
    """
    away = shape.branches - device_shape(shape, devices).branches
    if not away:
        return 0.0
    return 2 * link.latency + (sizes.question(shape, away) + sizes.answer(shape, away)) / link.bandwidth


def transfer_seconds(step: RecordedStep, devices: int, link: Link, sizes: MessageSizes) -> float:
    """Sending the committed rows to each device that lacks them, one copy after another from the winner's device."""
    lacking = devices - (min(devices, step.shape.branches) if step.shared else 1)
    if not step.committed or not lacking:
        return 0.0
    return link.latency + lacking * step.committed * sizes.cache_row / link.bandwidth
