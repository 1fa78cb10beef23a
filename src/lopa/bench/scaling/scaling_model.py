"""Model of a recorded decode's steps on another number of devices (docs/measurements/scale.md)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.bench.scaling.links import SHARED_MEMORY, DeviceLink
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.batch_parts import split_branches
from lopa.runtime.contract.stored_floats import stored_dtype

_ID_BYTES = 8
"""Bytes of a token id, a position or a row index."""


@dataclass(frozen=True)
class MessageSizes:
    """Bytes of the messages between devices."""

    cache_row: int
    """Bytes of keys and values of one committed row, all layers."""
    answer_row: int
    """Bytes of the statistics of one sampled position: K candidates (id, log-probability) and an entropy."""

    def messages(self, shape: ForwardShape, branches: int) -> int:
        """Return the bytes of the windows and the statistics of `branches` branches of `shape`."""
        window = 2 * _ID_BYTES * shape.window + shape.window**2 + _ID_BYTES * shape.wanted
        return branches * (window + shape.wanted * self.answer_row)


def sizes_from_manifest(manifest: Manifest) -> MessageSizes:
    """Return the message sizes of a bundle."""
    sizes, item = manifest.dimensions, stored_dtype(manifest.dtype).itemsize
    return MessageSizes(
        cache_row=2 * sizes.layers * sizes.kv_heads * sizes.head_size * item, answer_row=TOP_K * (_ID_BYTES + 4) + 4
    )


@dataclass(frozen=True)
class StepParts:
    """Seconds of the parts of one step, which add up to the step."""

    windows: float
    engine: float
    """Seconds of the slowest device."""
    gather: float
    """Seconds of the forward outside the engine."""
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
class ReplayStep:
    """One step of a real decode."""

    shape: ForwardShape
    """Shape of its forward, all branches."""
    committed: int
    """Number of committed rows."""
    shared: bool
    """True if the committed rows are equal on all branches (lopa.runtime.contract.batch_parts)."""
    parts: StepParts


Decode = tuple[ReplayStep, ...]


@dataclass(frozen=True)
class ShareCost:
    """Engine cost of the largest share of branches on a device, in the most common step with all branches."""

    devices: int
    branches: int
    """Branches of the device with the largest share."""
    window: int
    prefix: int
    wanted: int
    alone: float
    """Seconds while the other devices are idle."""
    together: float | None
    """Seconds of the slowest device while all compute equal numbers of branches, or None without enough cores."""


@dataclass(frozen=True)
class ScalingModel:
    """Costs that turn recorded steps of one device into steps of several."""

    sizes: MessageSizes
    shares: tuple[ShareCost, ...]
    """One share per number of devices, and one with a single branch."""

    def steps(self, steps: Sequence[ReplayStep], devices: int, link: DeviceLink) -> list[StepParts]:
        """Return the steps of one decode on `devices` devices connected by `link`. The first device is the host's own.

        The transfer of committed rows overlaps with the host's work. The next forward waits until the transfer ends.
        """
        remaining, predicted = 0.0, []
        for step in steps:
            parts = step.parts
            gather = (
                parts.gather + self.message_seconds(step.shape, devices, link) + max(0.0, remaining - parts.windows)
            )
            predicted.append(replace(parts, engine=self.engine_seconds(step, devices, link), gather=gather))
            remaining = max(0.0, self.transfer_seconds(step, devices, link) - parts.spawn)
        return predicted

    def engine_seconds(self, step: ReplayStep, devices: int, link: DeviceLink) -> float:
        """Return the recorded seconds times the relative cost of the largest share of branches.

        The cost is linear between measured shares. Devices with shared memory also slow each other down.
        """
        costs = {share.branches: share.alone for share in self.shares}
        known = sorted(costs)
        share, total = np.interp(
            (device_shape(step.shape, devices).branches, step.shape.branches), known, [costs[each] for each in known]
        )
        busy = link.name == SHARED_MEMORY and min(devices, step.shape.branches) > 1
        return float(step.parts.engine * share / total) * (self.slowdown(devices) if busy else 1.0)

    def slowdown(self, devices: int) -> float:
        """Return the factor by which a forward slows down while all of `devices` devices of this machine compute.

        A number that was not measured has the factor of the next smaller measured number. The factor of a single device
        is 1.
        """
        measured = [each for each in self.shares if each.together is not None and each.devices <= devices]
        if not measured:
            return 1.0
        nearest = max(measured, key=lambda each: each.devices)
        assert nearest.together is not None
        return nearest.together / nearest.alone

    def message_seconds(self, shape: ForwardShape, devices: int, link: DeviceLink) -> float:
        """Return the seconds of sending the windows to all devices but the first and receiving their statistics.

        Latencies of different devices overlap. All messages share the host's link.
        """
        remote = shape.branches - device_shape(shape, devices).branches
        return 2 * link.latency + self.sizes.messages(shape, remote) / link.bandwidth if remote else 0.0

    def transfer_seconds(self, step: ReplayStep, devices: int, link: DeviceLink) -> float:
        """Return the seconds of sending the committed rows to each device without them, one after another."""
        receivers = devices - (min(devices, step.shape.branches) if step.shared else 1)
        if not step.committed or not receivers:
            return 0.0
        return link.latency + receivers * step.committed * self.sizes.cache_row / link.bandwidth


def device_shape(shape: ForwardShape, devices: int) -> ForwardShape:
    """Return the shape that the device with the most branches computes."""
    first = split_branches(shape.branches, devices)[0]
    return replace(shape, branches=first.stop - first.start)
