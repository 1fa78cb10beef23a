"""The running requests of one session; every step is one round of all of them.

The pool groups requests into forwards. Threads and queues belong to the engine. Only one caller may use it at a time.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Statistics
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.decoding import Decoding, StopReason
from lopa.runtime.requests.answer import Answer
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.job import Job
from lopa.runtime.requests.observer import AdmissionReport, EndReport, EngineObserver, RoundReport
from lopa.runtime.requests.prompt_store import PromptStore, StoredPrompt
from lopa.runtime.requests.result import DoneEvent, GenerationResult
from lopa.runtime.requests.status import PoolLoad
from lopa.runtime.sessions.session import Session, next_request_number
from lopa.runtime.state.batch import MAX_PADDING, batch_from_windows, groups_from_windows, rows_of_windows
from lopa.runtime.state.windows import Windows
from lopa.runtime.text.tokenizer import Tokenizer


@dataclass(eq=False)
class _Running:
    job: Job
    decoding: Decoding
    answers: dict[RequestHandle, Answer]
    cache_rows: int
    """Rows in its prefix cache."""


@dataclass
class _Round:
    """Counts of a round, which starts at the end of the round before."""

    joining_seconds: float = 0.0
    forward_seconds: float = 0.0
    prompt_rows: int = 0
    real_rows: int = 0
    rows: int = 0


class RequestPool:
    """The running requests of one session, and their step function.

    A failing request ends with its own error and does not affect others. If the session raises an exception, `step`
    raises it, and the pool must then be closed.
    """

    def __init__(
        self,
        session: Session,
        manifest: Manifest,
        tokenizer: Tokenizer,
        prompts: PromptStore,
        *,
        max_padding: float = MAX_PADDING,
        observer: EngineObserver | None = None,
    ) -> None:
        """Create an empty pool that allows padding of a forward up to `max_padding`, as a share of its real rows.

        `observer` receives every round, admission and end. It must not raise.
        """
        self._session, self._manifest, self._tokenizer, self._prompts = session, manifest, tokenizer, prompts
        self._max_padding, self._observer = max_padding, observer
        self._running: list[_Running] = []
        self._rounds, self._round = 0, _Round()

    def __len__(self) -> int:
        return len(self._running)

    def load(self) -> PoolLoad:
        """Return the load of the running requests and the store."""
        return PoolLoad(
            cache_rows=sum(running.cache_rows for running in self._running),
            prompt_rows=sum(len(running.job.prompt_ids) for running in self._running),
            stored_rows=self._prompts.rows,
            saved_rows=self._prompts.rows_saved,
            rounds=self._rounds,
        )

    def prompt_rows_to_compute(self, job: Job) -> int:
        """Return the prompt rows that a request would compute if it joined now: 0 if they are stored."""
        return 0 if self._prompts.contains(job.prompt_ids, job.plan) else len(job.prompt_ids)

    def add(self, job: Job) -> None:
        """Add a request to the next step."""
        began = time.perf_counter()
        stored = self._prompts.find(job.prompt_ids, job.plan)
        self._report_admission(job, began, stored)
        with self._errors_end_request(job):
            running = self._start(job, stored)
            self._running.append(running)
            if stored is None:
                self._round.prompt_rows += len(job.prompt_ids)
        if stored is not None and not job.done:
            self._session.append_rows(running.decoding.request, stored.rows)
        self._round.joining_seconds += time.perf_counter() - began

    def step(self) -> None:
        """Run one round of every request: make the windows, run as few forwards as possible, then choose each request's
        tokens.
        """
        began = time.perf_counter()
        self._remove_ended()
        rounds: list[tuple[_Running, Windows]] = []
        for running in self._running:
            with self._errors_end_request(running.job):
                rounds.append((running, running.decoding.open_round()))
        for group in groups_from_windows([windows for _, windows in rounds], self._max_padding):
            members = [rounds[index] for index in group]
            statistics = self._forward(members)
            for slot, (running, windows) in enumerate(members):
                with self._errors_end_request(running.job):
                    rows = rows_of_windows(statistics, slot, windows)
                    self._finish_round(running, windows, rows, statistics.split)
        self._remove_ended()
        self._end_round(began, len(rounds))

    def end_unstarted(self, job: Job, ends: Sequence[tuple[RequestHandle, StopReason]]) -> None:
        """Give empty results to handles of a request that never ran."""
        with self._errors_end_request(job):
            running = self._start(job, None)
            for handle, reason in ends:
                self._hand_out_result(running, handle, reason)

    def end_failed(self, job: Job, error: BaseException) -> None:
        """Give an error to the unfinished handles of a request, running or not."""
        running = next((each for each in self._running if each.job is job), None)
        for handle in job.unfinished:
            self._report_end(running, job, handle, error)
            handle.put_error(error)

    def cancel_all(self) -> None:
        """End every request as cancelled."""
        for running in self._running:
            for handle in running.job.unfinished:
                handle.cancel()
        self._remove_ended()

    def hand_out_ended(self) -> None:
        """Give every ended request its result. This does not use the session, so it works after the session failed."""
        for running in self._running:
            if running.decoding.stop_reason is not None:
                for handle, reason in running.job.ending_handles(running.decoding.stop_reason).handles:
                    self._hand_out_result(running, handle, reason)

    def close(self) -> None:
        """Free every cache. Unfinished handles stay as they are."""
        for running in self._running:
            with suppress(Exception):  # a failed session may fail here too
                self._session.release(running.decoding.request)
        self._running.clear()

    def _start(self, job: Job, stored: StoredPrompt | None) -> _Running:
        decoding = Decoding(
            self._session,
            next_request_number(),
            job.prompt_ids,
            job.plan,
            self._manifest,
            job.budget,
            prompt_row=None if stored is None else stored.last,
            prompt_cached=stored is not None,
            sharing=job.sharing,
            grammar=job.grammar,
        )
        reused = 0 if stored is None else stored.rows.count
        answers = {
            handle: Answer(
                decoding,
                job.prompt_ids,
                job.plan,
                self._tokenizer,
                drafts=job.drafts,
                submitted=job.submitted,
                reused_rows=reused,
            )
            for handle in job.unfinished
        }
        return _Running(job, decoding, answers, reused)

    def _forward(self, members: Sequence[tuple[_Running, Windows]]) -> Statistics:
        batch = batch_from_windows(
            [windows for _, windows in members],
            [running.decoding.request for running, _ in members],
            [running.job.plan.logits_temperature for running, _ in members],
        )
        if self._observer is None:
            return self._session.forward(batch)
        began = time.perf_counter()
        statistics = self._session.forward(batch)
        self._round.forward_seconds += time.perf_counter() - began
        self._round.rows += batch.input_ids.size
        self._round.real_rows += sum(windows.computed_rows for _, windows in members)
        return statistics

    def _finish_round(
        self, running: _Running, windows: Windows, rows: RowStatistics, split: ForwardSplit | None
    ) -> None:
        job = running.job
        step = running.decoding.finish_round(windows, rows, split)
        running.cache_rows = windows.prefix + windows.commit
        if step.number == 1 and windows.commit and self._prompts.can_store(job.prompt_ids, job.plan):
            # The rows are valid until the next forward, so the prompt's are copied.
            branch = windows.branch_of_commit(step.winner)
            rows_of_prompt = self._session.read_rows(running.decoding.request, branch, windows.commit)
            last = running.decoding.kept_row
            self._prompts.add(
                job.prompt_ids, job.plan, StoredPrompt(rows_of_prompt, None if last is None else last.copy())
            )
        if job.on_step is not None:
            job.on_step(step)
        for handle in job.unfinished:
            handle.put_events(running.answers[handle].events_from_step(step))

    def _remove_ended(self) -> None:
        """Release the caches of finished requests and give them their results. Single copies may end earlier."""
        gone = []
        for running in self._running:
            ending_handles = running.job.ending_handles(running.decoding.stop_reason)
            if ending_handles.is_all:
                self._session.release(running.decoding.request)
                gone.append(running)
            for handle, reason in ending_handles.handles:
                self._hand_out_result(running, handle, reason)
        self._running = [running for running in self._running if running not in gone]

    def _end_round(self, began: float, requests: int) -> None:
        """Report the round, if there was one, and start counting for the next."""
        counted, self._round = self._round, _Round()
        if not requests:
            return
        self._rounds += 1
        if self._observer is not None:
            seconds = time.perf_counter() - began + counted.joining_seconds
            self._observer.round_ended(
                RoundReport(
                    seconds=seconds,
                    seconds_outside=seconds - counted.forward_seconds,
                    requests=requests,
                    real_rows=counted.real_rows,
                    padding_rows=counted.rows - counted.real_rows,
                    prompt_rows=counted.prompt_rows,
                )
            )

    def _hand_out_result(self, running: _Running, handle: RequestHandle, reason: StopReason) -> None:
        with self._errors_end_request(running.job):
            events = running.answers[handle].last_events(reason)
            last = events[-1]
            assert isinstance(last, DoneEvent)
            self._report_end(running, running.job, handle, last.result)
            handle.put_events(events)

    def _report_admission(self, job: Job, moment: float, stored: StoredPrompt | None) -> None:
        if self._observer is not None:
            reused = 0 if stored is None else stored.rows.count
            for _ in job.unfinished:
                self._observer.request_admitted(AdmissionReport(moment - job.submitted, len(job.prompt_ids), reused))

    def _report_end(
        self, running: _Running | None, job: Job, handle: RequestHandle, end: GenerationResult | BaseException
    ) -> None:
        """Report an end, a result or an error, to the observer. `running` is None if the request never ran."""
        if self._observer is None:
            return
        result, error = (end, None) if isinstance(end, GenerationResult) else (None, end)
        self._observer.request_ended(
            EndReport(
                stop_reason=None if result is None else result.stop_reason,
                error=error,
                prompt_tokens=len(job.prompt_ids),
                tokens=0 if result is None else result.tokens,
                steps=0 if running is None else running.decoding.steps,
                seconds=time.perf_counter() - job.submitted,
                first_text_seconds=None if running is None else running.answers[handle].first_text_seconds,
                cancelled=handle.cancelled,
            )
        )

    @contextmanager
    def _errors_end_request(self, job: Job) -> Iterator[None]:
        """Catch any exception as this request's error, which ends it."""
        try:
            yield
        except Exception as error:
            self.end_failed(job, error)
