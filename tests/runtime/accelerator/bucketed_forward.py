"""A forward on the host that runs a few shape buckets only, like an accelerator, to test padding.

The product pads for caches on a device (lopa.runtime.accelerator.device_session). This forward runs anywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.accelerator.padding import padded_batch, parts_of_forward
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket
from lopa.runtime.contract import Rows, Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import Part, branch_part_count
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.contract.sizes import sizes_of_batch
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.onnxruntime_session import forward_from_bundle
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix, cache_shape_from_manifest


def host_session(bundle: Bundle, front: Callable[[Forward, CacheShape], Forward]) -> HostSession:
    """Open a session on one CPU thread whose forward is wrapped by `front`."""
    shape = cache_shape_from_manifest(bundle.manifest)
    part = whole_model(bundle.manifest.dimensions.layers)
    return HostSession(front(forward_from_bundle(bundle, part, "cpu", threads=1), shape), "cpu", shape)


def bucketed_session(bundle: Bundle, buckets: Sequence[ShapeBucket]) -> HostSession:
    """Open a session on one CPU thread that pads or splits every forward to one of `buckets`."""
    return host_session(bundle, lambda forward, shape: BucketedForward(forward, buckets, shape))


class BucketedForward:
    """Forward that pads every batch to its shape bucket, runs it and removes the padding from the result."""

    def __init__(self, forward: Forward, buckets: Sequence[ShapeBucket], shape: CacheShape) -> None:
        self._forward, self._table, self._shape = forward, BucketTable(buckets), shape

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run one forward. Raises BadInputError for a window or prefix beyond all shape buckets."""
        sizes = sizes_of_batch(batch, prefix.mask.shape[1])
        bucket = self._table.bucket_for(sizes)
        parts = tuple(parts_of_forward(sizes, bucket))
        statistics: list[Statistics] = []
        rows: list[npt.NDArray[Any]] = []
        for part in parts:
            actual = batch.part(*part)
            answer, new_rows = self._forward.run(
                padded_batch(actual, bucket), self._padded_prefix(prefix, part, bucket)
            )
            statistics.append(answer.part(*map(slice, actual.logits_index.shape)))
            requests, branches, width = actual.input_ids.shape
            if not rows:
                axes = (sizes.requests, sizes.branches, self._shape.kv_heads, width, self._shape.head_size)
                rows = [np.empty(axes, array.dtype) for array in new_rows]
            for whole, array in zip(rows, new_rows, strict=True):
                whole[part] = array[:requests, :branches, :, :width]
        return Statistics.joined(statistics, branch_part_count(parts)), tuple(rows)

    def forget_prefix(self) -> None:
        """Drop references to the prefix."""
        self._forward.forget_prefix()

    def close(self) -> None:
        """Close the inner forward."""
        self._forward.close()

    def _padded_prefix(self, prefix: Prefix, part: Part, bucket: ShapeBucket) -> Prefix:
        """Return a copy of the prefix of `part`'s requests, padded with zeros to the shape of `bucket`."""
        padded = self._shape.zeros(bucket.requests, bucket.prefix)
        real = prefix.mask[part.requests]
        count = min(real.shape[1], bucket.prefix)
        padded.block[:, : len(real), :, :count] = prefix.block[:, part.requests, :, :count]
        padded.mask[: len(real), :count] = real[:, :count]
        return padded
