"""A forward on the host that sees the shapes of a few gears only, as an accelerator's does: to test padding with.

The product pads where the caches are on a device (lopa.runtime.accelerator.session); this one runs anywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.accelerator.padding import padded_batch, parts_of_forward
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import Gear, GearTable
from lopa.runtime.contract import Rows, Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import Part, parts_across
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.contract.sizes import sizes_of_batch
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.onnxruntime_session import forward_from_bundle
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix, cache_shape_from_manifest


def host_session(bundle: Bundle, front: Callable[[Forward, CacheShape], Forward]) -> HostSession:
    """A session on one CPU thread that runs what `front` puts before its forward."""
    shape = cache_shape_from_manifest(bundle.manifest)
    part = whole_model(bundle.manifest.dimensions.layers)
    return HostSession(front(forward_from_bundle(bundle, part, "cpu", threads=1), shape), "cpu", shape)


def geared_session(bundle: Bundle, gears: Sequence[Gear]) -> HostSession:
    """A session on one CPU thread, every forward of which is padded to one of `gears`, or split into several."""
    return host_session(bundle, lambda forward, shape: GearedForward(forward, gears, shape))


class GearedForward:
    """The Forward protocol: pads every forward to its gear, runs it by `forward`, cuts the answer back."""

    def __init__(self, forward: Forward, gears: Sequence[Gear], shape: CacheShape) -> None:
        self._forward, self._table, self._shape = forward, GearTable(gears), shape

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Forward.run. Raises BadInputError for a window or a prefix that no gear holds."""
        sizes = sizes_of_batch(batch, prefix.mask.shape[1])
        gear = self._table.gear_for(sizes)
        parts = tuple(parts_of_forward(sizes, gear))
        statistics: list[Statistics] = []
        rows: list[npt.NDArray[Any]] = []
        for part in parts:
            asked = batch.part(*part)
            answer, new_rows = self._forward.run(padded_batch(asked, gear), self._padded_prefix(prefix, part, gear))
            statistics.append(answer.part(*map(slice, asked.logits_index.shape)))
            requests, branches, width = asked.input_ids.shape
            if not rows:
                axes = (sizes.requests, sizes.branches, self._shape.kv_heads, width, self._shape.head_size)
                rows = [np.empty(axes, array.dtype) for array in new_rows]
            for whole, array in zip(rows, new_rows, strict=True):
                whole[part] = array[:requests, :branches, :, :width]
        return Statistics.joined(statistics, parts_across(parts)), tuple(rows)

    def forget_prefix(self) -> None:
        """Forward.forget_prefix."""
        self._forward.forget_prefix()

    def close(self) -> None:
        """Forward.close."""
        self._forward.close()

    def _padded_prefix(self, prefix: Prefix, part: Part, gear: Gear) -> Prefix:
        """A copy of the prefix of the requests of `part`, with zeros up to the shape of `gear`."""
        padded = self._shape.zeros(gear.requests, gear.prefix)
        real = prefix.mask[part.requests]
        count = min(real.shape[1], gear.prefix)
        padded.block[:, : len(real), :, :count] = prefix.block[:, part.requests, :, :count]
        padded.mask[: len(real), :count] = real[:, :count]
        return padded
