"""Replays the steps of a real decode on another number of devices (docs/measurements/scale.md).

Pure: it knows numbers only, and neither measures nor knows where the costs come from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.bench.scaling.links import SHARED_MEMORY, Link
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.batch_parts import shares_of_branches
from lopa.runtime.contract.stored_floats import stored_dtype

_ID_BYTES = 8
"""Bytes of a token id, a position or the number of a row."""


@dataclass(frozen=True)
class MessageSizes:
    """Bytes that travel between devices."""

    cache_row: int
    """Keys and values of one committed row in all layers."""
    answer_row: int
    """Statistics of one sampled row: K candidates (id, log-probability) and an entropy."""

    def messages(self, shape: ForwardShape, branches: int) -> int:
        """Return the bytes of the windows of `branches` branches of `shape`, and of their statistics."""
        window = 2 * _ID_BYTES * shape.window + shape.window**2 + _ID_BYTES * shape.wanted
        return branches * (window + shape.wanted * self.answer_row)


def sizes_from_manifest(manifest: Manifest) -> MessageSizes:
    """Return the sizes of the messages of a bundle."""
    sizes, item = manifest.dimensions, stored_dtype(manifest.dtype).itemsize
    return MessageSizes(
        cache_row=2 * sizes.layers * sizes.kv_heads * sizes.head_size * item, answer_row=TOP_K * (_ID_BYTES + 4) + 4
    )


@dataclass(frozen=True)
class StepParts:
    """Seconds of one step; together they are the step."""

    windows: float
    engine: float
    """The slowest device's."""
    gather: float
    """The forward beyond the engine."""
    select: float
    commit: float
    spawn: float

    @property
    def host(self) -> float:
        """Seconds of building windows and branches."""
        return self.windows + self.spawn

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.windows + self.engine + self.gather + self.select + self.commit + self.spawn


@dataclass(frozen=True)
class RecordedStep:
    """One step of a real decode."""

    shape: ForwardShape
    """Its forward, all branches."""
    committed: int
    """Committed rows."""
    shared: bool
    """Whether the committed rows are the same on every branch (lopa.runtime.contract.batch_parts)."""
    parts: StepParts


Decode = tuple[RecordedStep, ...]


@dataclass(frozen=True)
class ShareCost:
    """The engine at the shape that the fullest device gets of the commonest step with all branches."""

    devices: int
    branches: int
    """Branches of the fullest device."""
    window: int
    prefix: int
    wanted: int
    alone: float
    """Seconds while the other devices rest."""
    together: float | None
    """Seconds of the slowest device while all compute as many branches; None where there are not enough cores."""


@dataclass(frozen=True)
class ScalingModel:
    """Costs from which recorded steps of one device become steps of several."""

    sizes: MessageSizes
    shares: tuple[ShareCost, ...]
    """One for every number of devices, and one of a single branch."""

    def steps(self, steps: Sequence[RecordedStep], devices: int, link: Link) -> list[StepParts]:
        """Return the steps of one decode on `devices` devices joined by `link`; the first device is the host's own.

        Committed rows are sent beside the host's work, and the next forward waits for the rest of that transfer.
        """
        late, predicted = 0.0, []
        for step in steps:
            took = step.parts
            gather = took.gather + self.message_seconds(step.shape, devices, link) + max(0.0, late - took.windows)
            predicted.append(replace(took, engine=self.engine_seconds(step, devices, link), gather=gather))
            late = max(0.0, self.transfer_seconds(step, devices, link) - took.spawn)
        return predicted

    def engine_seconds(self, step: RecordedStep, devices: int, link: Link) -> float:
        """Return the recorded seconds times the relative cost of the fullest device's share of the branches.

        The cost is linear between measured shares. Devices that share memory also slow each other down.
        """
        costs = {share.branches: share.alone for share in self.shares}
        known = sorted(costs)
        share, whole = np.interp(
            (device_shape(step.shape, devices).branches, step.shape.branches), known, [costs[each] for each in known]
        )
        busy = link.name == SHARED_MEMORY and min(devices, step.shape.branches) > 1
        return float(step.parts.engine * share / whole) * (self.slowdown(devices) if busy else 1.0)

    def slowdown(self, devices: int) -> float:
        """Return how many times longer a forward takes while all of `devices` devices of this machine compute.

        A number of devices that was not measured has the slowdown of the next smaller one; a device alone has 1.
        """
        measured = [each for each in self.shares if each.together is not None and each.devices <= devices]
        if not measured:
            return 1.0
        nearest = max(measured, key=lambda each: each.devices)
        assert nearest.together is not None
        return nearest.together / nearest.alone

    def message_seconds(self, shape: ForwardShape, devices: int, link: Link) -> float:
        """Return the seconds of sending the windows to all devices but the first, and of receiving their statistics.

        Latencies of different devices overlap; their bytes go through the host's one link one after another.
        """
        away = shape.branches - device_shape(shape, devices).branches
        return 2 * link.latency + self.sizes.messages(shape, away) / link.bandwidth if away else 0.0

    def transfer_seconds(self, step: RecordedStep, devices: int, link: Link) -> float:
        """Return the seconds of sending the committed rows to each device that lacks them, one after another."""
        lacking = devices - (min(devices, step.shape.branches) if step.shared else 1)
        if not step.committed or not lacking:
            return 0.0
        return link.latency + lacking * step.committed * self.sizes.cache_row / link.bandwidth


def device_shape(shape: ForwardShape, devices: int) -> ForwardShape:
    """Return the shape that the device with the most branches of a forward computes."""
    first = shares_of_branches(shape.branches, devices)[0]
    return replace(shape, branches=first.stop - first.start)
