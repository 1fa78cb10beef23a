"""One forward on a Qualcomm NPU, padded to a shape bucket. Arrays stay in host memory, which the NPU shares."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from lopa.runtime import contract
from lopa.runtime.accelerator.graph_form import ContractForm
from lopa.runtime.accelerator.padding import padded_batch, parts_of_forward
from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket
from lopa.runtime.contract import Rows, Statistics, WindowBatch, past_names, statistics_of_arrays, tiles, window_names
from lopa.runtime.contract.batch_parts import Part, branch_part_count
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.contract.sizes import sizes_of_batch
from lopa.runtime.sessions.prefix_cache import Prefix

Array = npt.NDArray[Any]


class QnnForward:
    """Forwards in the shapes of opened context binaries."""

    def __init__(self, sessions: Mapping[ShapeBucket, onnxruntime.InferenceSession], rotary: RotaryAngles) -> None:
        """Create a forward over one session per shape bucket. The graphs take the cosines and sines of `rotary`."""
        self._sessions = dict(sessions)
        self._rotary = rotary
        self._table = BucketTable(list(sessions))

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run one forward in one or more parts. Raises BadInputError for sizes beyond all shape buckets."""
        used = int(prefix.mask.sum(axis=1).max(initial=0))
        sizes = sizes_of_batch(batch, tiles(used))
        bucket = self._table.bucket_for(sizes)
        parts = tuple(parts_of_forward(sizes, bucket))
        across = branch_part_count(parts)
        done = [self._run_part(bucket, batch.part(*part), part, prefix) for part in parts]
        statistics = Statistics.joined([each for each, _ in done], across)
        rows = tuple(
            _joined([arrays[name] for _, arrays in done], across) for name in window_names(len(prefix.block) // 2)
        )
        return statistics, rows

    def forget_prefix(self) -> None:
        """Do nothing: every run copies the prefix."""

    def close(self) -> None:
        """Free all graphs."""
        self._sessions.clear()

    def _run_part(
        self, bucket: ShapeBucket, batch: WindowBatch, part: Part, prefix: Prefix
    ) -> tuple[Statistics, dict[str, Array]]:
        session = self._sessions[bucket]
        names = [output.name for output in session.get_outputs()]
        inputs = inputs_of_part(batch, part, prefix, bucket, self._rotary)
        outputs: dict[str, Array] = dict(zip(names, session.run(names, inputs), strict=True))
        requests, branches, wanted = batch.logits_index.shape
        outputs[contract.TOPK_IDS] = outputs[contract.TOPK_IDS].astype(np.int64, copy=False)
        statistics = statistics_of_arrays(outputs).part(slice(requests), slice(branches), slice(wanted))
        width = batch.input_ids.shape[2]
        rows = {name: outputs[name][:requests, :branches, :, :width] for name in window_names(len(prefix.block) // 2)}
        return statistics, rows


def inputs_of_part(
    batch: WindowBatch, part: Part, prefix: Prefix, bucket: ShapeBucket, rotary: RotaryAngles
) -> dict[str, Array]:
    """Return all inputs of a part of a forward by name, padded to the shape of `bucket`."""
    padded = padded_batch(batch, bucket)
    requests = len(batch.requests)
    rows = min(bucket.prefix, prefix.mask.shape[1])
    mask = np.zeros((bucket.requests, bucket.prefix), np.bool_)
    mask[:requests, :rows] = prefix.mask[part.requests, :rows]
    arrays, _, heads, _, size = prefix.block.shape
    past = np.zeros((arrays, bucket.requests, heads, bucket.prefix, size), prefix.block.dtype)
    past[:, :requests, :, :rows] = prefix.block[:, part.requests, :, :rows]
    return ContractForm(rotary).inputs(padded, mask) | dict(zip(past_names(arrays // 2), past, strict=True))


def _joined(parts: list[Array], across: int) -> Array:
    """Concatenate the rows of parts; every `across` consecutive parts hold branches of the same requests."""
    if len(parts) == 1:
        return parts[0]
    groups = [np.concatenate(parts[first : first + across], axis=1) for first in range(0, len(parts), across)]
    return np.concatenate(groups, axis=0)
