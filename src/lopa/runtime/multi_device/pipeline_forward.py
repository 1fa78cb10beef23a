"""A forward through pipeline stages, which compute different micro-batches at the same time.

Every stage has some layers and its own thread. Rows pass between stages through host memory.
"""

from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial

import numpy as np

from lopa.runtime.contract import Float32, Rows, Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import Part, branch_part_count, micro_batches
from lopa.runtime.contract.model_part import NEXT_HIDDEN, ModelPart
from lopa.runtime.sessions.bound_forward import BoundForward
from lopa.runtime.sessions.device_worker import DeviceWorker, pin_thread
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix

StageResult = Float32 | Statistics
"""Result of a stage for one micro-batch: hidden rows (model_part.NEXT_HIDDEN), or statistics from the last stage."""


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One micro-batch, with everything that a stage needs."""

    piece: Part
    batch: WindowBatch
    """The part of the batch for this micro-batch."""
    prefix: Prefix
    """Prefix of the whole model and all requests."""
    rows: tuple[Rows, ...]
    """New rows of the whole model and all windows, dtype [R, B, Hkv, W, D]. A stage writes the rows of its layers and
    `piece`."""


class PipelineStage:
    """Some layers on one device, and the thread that drives it."""

    def __init__(
        self,
        forward: BoundForward,
        part: ModelPart,
        name: str,
        cores: tuple[int, ...] | None = None,
    ) -> None:
        """Start the stage's thread, bound to `cores` if given."""
        self._forward, self._part = forward, part
        self._thread = DeviceWorker(name)
        if cores is not None:
            self._thread.submit(partial(pin_thread, cores)).result()
        self._prefix: Prefix | None = None
        self._views: dict[tuple[int, int], Prefix] = {}
        """Views of `_prefix` for this stage's layers, by first and end request. They are reused because the forward
        binds every new object."""

    def submit(self, work: MicroBatch, before: Future[StageResult] | None) -> Future[StageResult]:
        """Queue `work` on the result of the stage before, or on None for the first stage. An error of the stage before
        becomes the error of this work.
        """
        return self._thread.submit(partial(self._run, work, before))

    def forget_prefix(self) -> None:
        """Drop references to the prefix of an earlier run."""
        self._prefix = None
        self._views.clear()
        self._forward.forget_prefix()

    def close(self) -> None:
        """Free the forward and end the thread, after all queued work."""
        closing = self._thread.submit(self._forward.close)
        self._thread.stop()
        closing.result()

    def _run(self, work: MicroBatch, before: Future[StageResult] | None) -> StageResult:
        hidden = None if before is None else before.result()
        assert not isinstance(hidden, Statistics)  # only the last stage returns statistics
        outputs = self._forward.run_part(work.batch, hidden, self._view(work.prefix, work.piece.requests))
        for whole, name in zip(work.rows[self._part.cache_arrays], self._part.window_names, strict=True):
            whole[work.piece] = outputs[name]
        last = self._part.is_last
        return self._forward.statistics_from_outputs(outputs) if last else outputs[NEXT_HIDDEN].copy()

    def _view(self, prefix: Prefix, requests: slice) -> Prefix:
        if prefix is not self._prefix:
            self._prefix, self._views = prefix, {}
        key = (requests.start, requests.stop)
        if key not in self._views:
            self._views[key] = Prefix(prefix.block[self._part.cache_arrays, requests], prefix.mask[requests])
        return self._views[key]


class PipelinedForward:
    """The Forward of HostSession over stages that contain all layers, in order."""

    def __init__(self, stages: Sequence[PipelineStage], shape: CacheShape) -> None:
        self._stages, self._shape = tuple(stages), shape
        self._rows: tuple[Rows, ...] = ()

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run the stages on one micro-batch per stage, if there are enough branches and requests.

        An error of a stage stops all micro-batches and is raised.
        """
        rows = self._rows_of(batch)
        requests, branches, _ = batch.input_ids.shape
        pieces = micro_batches(requests, branches, len(self._stages))
        submitted: list[Future[StageResult]] = []
        ends: list[Future[StageResult]] = []
        try:
            for piece in pieces:
                work = MicroBatch(piece, batch.part(*piece), prefix, rows)
                answer = None
                for stage in self._stages:
                    answer = stage.submit(work, answer)
                    submitted.append(answer)
                ends.append(submitted[-1])
            answers = [end.result() for end in ends]
        finally:
            for each in submitted:
                each.cancel()
            wait(submitted)  # no stage may still write into memory that the caller reuses
        statistics = [each for each in answers if isinstance(each, Statistics)]
        return Statistics.joined(statistics, branch_part_count(pieces)), rows

    def forget_prefix(self) -> None:
        """Drop references to the prefix of an earlier run."""
        for stage in self._stages:
            stage.forget_prefix()

    def close(self) -> None:
        """End all threads and free the forwards."""
        for stage in self._stages:
            stage.close()
        self._rows = ()

    def _rows_of(self, batch: WindowBatch) -> tuple[Rows, ...]:
        """Return memory for all new rows. The memory of the last forward is reused if it fits."""
        requests, branches, width = batch.input_ids.shape
        shape = (requests, branches, self._shape.kv_heads, width, self._shape.head_size)
        if not self._rows or self._rows[0].shape != shape:
            self._rows = tuple(np.empty(shape, self._shape.dtype) for _ in range(self._shape.arrays))
        return self._rows
