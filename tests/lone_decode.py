"""A decode that has a session to itself."""

from typing import Any

from lopa.runtime.contract import CacheRows, ForwardSplit, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.extension import Extension
from lopa.runtime.decoding.lopa_loop import LopaLoop
from lopa.runtime.decoding.step import Step
from lopa.runtime.options import DecodingParams
from lopa.runtime.requests.running_loop import RequestCache, RunningLoop
from lopa.runtime.state.answer_state import AnswerState, StopReason
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.packed_rows import PackedRows, SharingTest


class LoneDecode:
    """A LopaLoop, its cache, and rounds with a forward each."""

    def __init__(
        self,
        session: Any,
        prompt: Int64,
        params: DecodingParams,
        model: Any,
        *extensions: Extension,
        sharing: SharingTest | None = None,
    ) -> None:
        self.loop = LopaLoop(params, model, prompt, extensions)
        self._running = RunningLoop(self.loop, RequestCache(session), sharing)

    @property
    def anchor(self) -> Branch:
        return self.loop.anchor

    @property
    def answer(self) -> AnswerState:
        return self.loop.answer

    @property
    def stop_reason(self) -> StopReason | None:
        return self.loop.answer.stop_reason

    @property
    def steps(self) -> int:
        return self.loop.steps

    def step(self) -> Step:
        return self._running.step()

    def open_round(self) -> PackedRows:
        return self._running.open_round()

    def finish_round(self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None = None) -> Step:
        step = self._running.finish_round(packed, rows, split)
        assert step is not None
        return step

    def forward_is_given(self) -> None:
        """Let `finish_round` commit rows of a session that runs no forward."""
        ticket: Any = object()
        self._running.cache.ticket = ticket

    def read_rows(self, window: int, count: int) -> CacheRows:
        """Return rows of the last forward."""
        cache = self._running.cache
        assert cache.ticket is not None
        return cache.session.read_rows(cache.ticket, cache.number, window, count)

    def run(self) -> list[Step]:
        """Decode to the end, and release the request. Return the steps."""
        steps = []
        while self.stop_reason is None:
            steps.append(self.step())
        self.release()
        return steps

    def release(self) -> None:
        self._running.cache.release()
