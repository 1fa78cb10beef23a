"""The running requests of one session; every step is one round of all of them.

The pool groups requests into forwards. Threads and queues belong to the engine. A pool has one caller at a time. Pools
of one decoder take turns on its session.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TILE, ForwardSplit, tiles
from lopa.runtime.contract.row_statistics import RowStatistics, statistics_problem
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import DeviceMemoryError, raise_if_from_handler
from lopa.runtime.requests.admission import PoolLoad
from lopa.runtime.requests.handle import RequestHandle, ending_handles
from lopa.runtime.requests.job import Job, loop_of_job
from lopa.runtime.requests.observer import AdmissionReport, EndReport, EngineObserver, RoundReport
from lopa.runtime.requests.output_processor import OutputProcessor
from lopa.runtime.requests.prefix_tree import PrefixReuse, PrefixTree, prefix_reuse
from lopa.runtime.requests.prompt_pieces import PromptPieces, pieces_of_prompt
from lopa.runtime.requests.result import DoneEvent, GenerationResult
from lopa.runtime.requests.running_loop import (
    MAX_PADDING,
    RequestCache,
    RequestLoop,
    RunningLoop,
    batch_from_rows,
    columns_from_statistics,
    groups_by_rows,
    groups_from_rows,
)
from lopa.runtime.requests.session_turns import SessionTurns
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import RetryingSession
from lopa.runtime.state.answer_state import StopReason
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.text.tokenizer import Tokenizer

_LOG = logging.getLogger(__name__)
Report = TypeVar("Report")
MIN_GROUP_ROWS = 256
"""Rows of each of two groups that alternate. A GPU takes nearly as long for fewer rows, so that one forward of all rows
is faster (facts of an H100: 5.8 ms of products for 256 rows, 4.9 for 32)."""


class _Running(RunningLoop):
    """A request in the pool."""

    def __init__(
        self,
        job: Job,
        loop: RequestLoop,
        cache: RequestCache,
        outputs: dict[RequestHandle, OutputProcessor],
        pieces: PromptPieces,
    ) -> None:
        super().__init__(loop, cache, job.sharing)
        self.job, self.outputs, self._pieces = job, outputs, pieces

    @property
    def has_pieces(self) -> bool:
        """True until the pieces of the prompt are computed."""
        return len(self.cache.positions) < self._pieces.end

    def open_round(self) -> PackedRows:
        """Return the rows of a piece of the prompt, or those of a round of the loop."""
        if not self.has_pieces:
            return super().open_round()
        start, params = len(self.cache.positions), self.loop.params
        return self._pieces.rows(self.job.prompt_ids, start, self.loop.layout, params)

    def finish_round(
        self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None, is_valid: bool = False
    ) -> Step | None:
        """Commit a piece of the prompt, or process a round of the loop."""
        if not self.has_pieces:
            return super().finish_round(packed, rows, split, is_valid)
        self.cache.commit(packed, rows, 0)
        return None


_Members = list[tuple[_Running, PackedRows]]
"""The requests of a forward with their rows."""


@dataclass
class _Round:
    """Counts of a round, which starts at the end of the round before."""

    requests: int = 0
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
        prefixes: PrefixTree | None,
        *,
        max_padding: float = MAX_PADDING,
        observer: EngineObserver | None = None,
        turns: SessionTurns | None = None,
    ) -> None:
        """Create an empty pool that allows padding of a forward up to `max_padding`, as a share of its real rows.

        `prefixes` holds rows of this session only; without it requests share nothing. `observer` receives every round,
        admission and end. Several pools may take `turns` on a session.
        """
        self._session = RetryingSession(session, self._make_room)
        self._manifest, self._tokenizer, self._prefixes = manifest, tokenizer, prefixes
        self._turns = SessionTurns() if turns is None else turns
        self._own_errors: type[BaseException] = Exception
        """Exceptions in a request's code, such as its `on_step`, that end this request only."""
        self._max_padding, self._observer = max_padding, observer
        self._running: list[_Running] = []
        """Requests in the order of their admission."""
        self._flights: deque[tuple[Ticket, _Members]] = deque()
        """Forwards in flight, in the order of their start."""
        self._free_rows: int | None = None
        self._rounds, self._round = 0, _Round()
        self._reported_evictions, self._observer_failed = 0, False

    def __len__(self) -> int:
        return len(self._running)

    def load(self) -> PoolLoad:
        """Return the load of the running requests and the store."""
        prefixes = self._prefixes or PrefixTree(0)
        return PoolLoad(
            cache_rows=sum(len(running.cache.positions) for running in self._running),
            prompt_rows=sum(len(running.job.prompt_ids) for running in self._running),
            prefix_cached_tokens=prefixes.tokens,
            prefix_hit_tokens=prefixes.tokens_found,
            prefix_hits=prefixes.hits,
            evicted_blocks=prefixes.evictions,
            rounds=self._rounds,
            free_cache_rows=self._free_rows,
        )

    def number_fitting(self, jobs: Sequence[Job]) -> int:
        """Return how many of the first `jobs` the device has memory for; at least one if nothing runs.

        The rows that running requests may still cache count too.
        """
        if jobs:
            self._turns.run(self._read_free_rows)
        if self._free_rows is None:
            return len(jobs)
        left = self._free_rows + (0 if self._prefixes is None else self._prefixes.unused_tokens)
        left -= sum(_rows_to_allocate(each.job, len(each.cache.positions)) for each in self._running)
        for number, job in enumerate(jobs):
            left -= _rows_to_allocate(job, self._stored_rows(job, in_use=True))
            if left < 0 and (number or self._running):
                return number
        return len(jobs)

    def prompt_rows_to_compute(self, job: Job) -> int:
        """Return the prompt rows that a request would compute in a round if it joined now, without those that are
        stored.
        """
        rows = len(job.prompt_ids) - self._stored_rows(job)
        return min(rows, self._pieces(job, len(job.prompt_ids) - rows).size or rows)

    def _pieces(self, job: Job, cached: int) -> PromptPieces:
        """Return the pieces of a request's prompt. Padded windows are computed in one forward, and so are scores."""
        rows = self._session.rows_per_forward
        if rows is None or job.choices is not None:
            return PromptPieces()
        return pieces_of_prompt(len(job.prompt_ids), cached, job.params, self._manifest.prediction_shift, rows)

    def _stored_rows(self, job: Job, *, in_use: bool = False) -> int:
        """Return the number of prompt rows that are stored, or of those that a request uses."""
        reuse = self._reuse(job)
        if reuse is None or self._prefixes is None:
            return 0
        return self._prefixes.count_tokens(reuse.key, reuse.blocks(job.prompt_ids), in_use=in_use)

    def add(self, job: Job) -> None:
        """Add a request to the next step."""
        began = time.perf_counter()
        cache = RequestCache(self._session, self._prefixes, self._reuse(job), job.prompt_ids)
        self._report_admission(job, began, cache.reused)
        for handle in job.unfinished:
            handle.timing.admitted = began
        with _ErrorsEndRequest(self, job):
            self._running.append(self._start(job, cache))
            self._round.prompt_rows += len(job.prompt_ids) - cache.reused
        if job.done:
            cache.end_sharing()
        elif cache.reused:
            try:
                self._turns.run(cache.load)
            except DeviceMemoryError as error:
                self.end_failed(job, error)
        self._round.joining_seconds += time.perf_counter() - began

    def step(self) -> None:
        """Run one round of every request: make the rows, run as few forwards as possible, then choose each request's
        tokens.

        If the session computes from `start` on and there are enough rows, two groups of requests alternate. A step
        starts the round of one group, and ends the round that the other began in the step before. The device then
        computes one group while the host works for the other.
        """
        began = time.perf_counter()
        rounds = self._turns.run(self._open_rounds)
        groups, in_flight = self._groups([packed for _, packed in rounds])
        for group in groups or [()] * bool(self._flights):
            finished = self._turns.run(partial(self._advance, [rounds[index] for index in group], in_flight))
            for running, _, step in finished:  # callbacks may use the session in turn
                with _ErrorsEndRequest(self, running.job):
                    if step is not None and running.job.on_step is not None:
                        running.job.on_step(step)
                    for handle in running.job.unfinished:
                        handle.put_events(running.outputs[handle].events_from_step(step))
        self._remove_ended()
        self._end_round(began)

    def _open_rounds(self) -> _Members:
        rounds: _Members = []
        prefilling = next((each for each in self._running if each.has_pieces and not each.job.done), None)
        for running in self._running:
            if running.has_pieces and running is not prefilling:
                continue  # one prompt after another, so that a round computes one piece
            if running.cache.ticket is not None or running.job.done or running.loop.answer.stop_reason is not None:
                continue  # its first answer may have been the last
            with _ErrorsEndRequest(self, running.job):
                rounds.append((running, running.open_round()))
        return rounds

    def _groups(self, rows: Sequence[PackedRows]) -> tuple[tuple[tuple[int, ...], ...], int]:
        """Return the groups of `rows` that share a forward, and how many forwards to leave in flight."""
        max_rows = self._session.rows_per_forward if rows and len(self._running) > 1 else None
        if max_rows is None:
            return groups_from_rows(rows, self._max_padding) if rows else (), 0
        sizes = [each.input_ids.size for each in rows]
        half = (sum(sizes) + sum(ticket.batch.input_ids.size for ticket, _ in self._flights)) / 2
        alternates = half >= MIN_GROUP_ROWS
        complete = sum(sizes) / max(1, round(sum(sizes) / half)) if alternates else max_rows
        return groups_by_rows(sizes, max_rows, complete), int(alternates)

    def _advance(self, members: _Members, in_flight: int) -> list[tuple[_Running, PackedRows, Step | None]]:
        """Start the forward of `members`, then wait for the oldest forwards, until `in_flight` are left.

        Return the requests whose round ended without an error, with their steps. Scoring requests have no step.
        """
        self._start_forward(members)
        finished: list[tuple[_Running, PackedRows, Step | None]] = []
        while len(self._flights) > in_flight:
            finished += self._finish_forward(*self._flights.popleft())
        return finished

    def _finish_forward(self, ticket: Ticket, members: _Members) -> list[tuple[_Running, PackedRows, Step | None]]:
        began = time.perf_counter()
        statistics = self._session.wait(ticket)
        self._round.forward_seconds += time.perf_counter() - began
        self._round.requests += len(members)
        if self._observer is not None:
            padded = self._session.rows_per_forward is None
            self._round.rows += ticket.batch.padded_rows if padded else ticket.batch.input_ids.size
            self._round.real_rows += ticket.batch.input_ids.size
        finished: list[tuple[_Running, PackedRows, Step | None]] = []
        are_valid = statistics_problem(statistics, self._manifest.dimensions.vocab_size) is None
        columns = columns_from_statistics(statistics, [packed for _, packed in members])
        for (running, packed), rows in zip(members, columns, strict=True):
            if running.job.done:
                continue  # it ended for lack of memory
            with _ErrorsEndRequest(self, running.job):
                step = running.finish_round(packed, rows, statistics.split, are_valid)
                finished.append((running, packed, step))
                if running.loop.steps == 1:
                    prefilled = time.perf_counter()
                    for handle in running.job.unfinished:
                        handle.timing.prefilled = prefilled
        # Devices that failed may lose these rows, so all requests commit theirs first.
        for running, packed, step in finished:
            if packed.commit and not running.job.done:
                self._store_rows(running, packed, step)
        self._release(ticket, members)
        return finished

    def _release(self, ticket: Ticket, members: _Members) -> None:
        for running, _ in members:
            running.cache.ticket = None
        self._session.release(ticket)

    def end_unstarted(self, job: Job, ends: Sequence[tuple[RequestHandle, StopReason]]) -> None:
        """Give empty results to handles of a request that never ran."""
        with _ErrorsEndRequest(self, job):
            running = self._start(job, RequestCache(self._session))
            for handle, reason in ends:
                self._hand_out_result(running, handle, reason)

    def end_failed(self, job: Job, error: BaseException) -> None:
        """Give an error to the unfinished handles of a request, running or not."""
        running = next((each for each in self._running if each.job is job), None)
        for handle in job.unfinished:
            self._report_end(running, job, handle, error)
            handle.put_error(error)

    def cancel_all(self) -> None:
        """End every request as cancelled, and give up forwards in flight."""
        while self._flights:
            self._turns.run(partial(self._release, *self._flights.popleft()))
        for running in self._running:
            for handle in running.job.unfinished:
                handle.cancel()
        self._remove_ended()

    def hand_out_ended(self) -> None:
        """Give every ended request its result. This does not use the session, so it works after the session failed."""
        for running in self._running:
            if running.loop.answer.stop_reason is not None:
                for handle in running.job.unfinished:
                    self._hand_out_result(running, handle, running.loop.answer.stop_reason)

    def close(self) -> None:
        """Free every cache and stored row, after the round that runs on the session. Unfinished handles stay as they
        are.

        The collector may call this at any time, as it closes iterators that were left.
        """
        for running in self._running:
            running.cache.end_sharing()
            self._turns.later(running.cache.release)
        self._running.clear()
        self._flights.clear()
        if self._prefixes is not None:
            self._prefixes.evict(self._prefixes.tokens)

    def _reuse(self, job: Job) -> PrefixReuse | None:
        """Return how a request shares prefixes, or None if it does not. Scores are computed from the whole prompt."""
        if self._prefixes is None or job.choices is not None:
            return None
        return prefix_reuse(len(job.prompt_ids), job.params, self._manifest.prediction_shift, job.cache_salt)

    def _start(self, job: Job, cache: RequestCache) -> _Running:
        pieces = self._pieces(job, cache.reused)
        loop = loop_of_job(job, self._manifest, max(cache.reused, pieces.end))
        ends = self._manifest.special_tokens.ends
        outputs = {
            handle: OutputProcessor(
                loop, job.prompt_ids, self._tokenizer, drafts=job.drafts, submitted=job.submitted, hole_ends=ends
            )
            for handle in job.unfinished
        }
        return _Running(job, loop, cache, outputs, pieces)

    def _start_forward(self, members: _Members) -> None:
        """Start the forward of `members`. The newest one ends if the device has no memory for all of them."""
        while members := [(running, packed) for running, packed in members if not running.job.done]:
            batch = batch_from_rows(
                [packed for _, packed in members],
                [running.cache.number for running, _ in members],
                [running.loop.params.logits_temperature for running, _ in members],
            )
            began = time.perf_counter()
            try:
                ticket = self._session.start(batch)
            except DeviceMemoryError as error:
                self._end_without_memory(members[-1][0], error)
                continue
            self._round.forward_seconds += time.perf_counter() - began
            for running, _ in members:
                running.cache.ticket = ticket
            self._flights.append((ticket, members))
            return

    def _read_free_rows(self) -> None:
        self._free_rows = self._session.free_rows()

    def _make_room(self, error: DeviceMemoryError) -> bool:
        """Drop stored rows that nobody uses, or else end the newest request that is not in flight. Return False if it
        is the one that needs memory.
        """
        if self._prefixes is not None and self._prefixes.evict(tiles(error.rows)):
            return True
        in_flight = [running for _, members in self._flights for running, _ in members]
        idle = [each for each in self._running if not each.job.done and each not in in_flight]
        if not idle or idle[-1].cache.number == error.request:
            return False
        self._end_without_memory(idle[-1], error)
        return True

    def _end_without_memory(self, running: _Running, error: DeviceMemoryError) -> None:
        self.end_failed(running.job, error)
        running.cache.end_sharing()
        self._session.free(running.cache.number)

    def _store_rows(self, running: _Running, packed: PackedRows, step: Step | None) -> None:
        """Store the rows of finished blocks that the last forward computed and the request committed.

        A failure to read them affects no request. A device that failed fails again in its next forward.
        """
        try:
            running.cache.store(packed, 0 if step is None else step.winner)
        except Exception as error:
            raise_if_from_handler(error)
            _LOG.debug("rows were not stored: %s", error)
            running.cache.end_sharing()

    def _remove_ended(self) -> None:
        """Release the caches of finished requests and give them their results. Single copies may end earlier."""
        gone = []
        for running in self._running:
            if running.cache.ticket is not None:
                continue  # its forward is in flight
            unfinished = running.job.unfinished
            ending = ending_handles(unfinished, running.job.deadline, running.loop.answer.stop_reason)
            if len(ending) == len(unfinished):
                running.cache.end_sharing()
                self._turns.run(running.cache.release)
                gone.append(running)
            for handle, reason in ending:
                self._hand_out_result(running, handle, reason)
        if gone:
            self._turns.run(self._read_free_rows)
            self._running = [running for running in self._running if running not in gone]

    def _end_round(self, began: float) -> None:
        """Report the round, if there was one, and start counting for the next."""
        counted, self._round = self._round, _Round()
        if not counted.requests:
            return
        self._rounds += 1
        if self._observer is not None:
            evictions = 0 if self._prefixes is None else self._prefixes.evictions
            seconds = time.perf_counter() - began + counted.joining_seconds
            self._report(
                self._observer.round_ended,
                RoundReport(
                    seconds=seconds,
                    seconds_outside=seconds - counted.forward_seconds,
                    requests=counted.requests,
                    real_rows=counted.real_rows,
                    padding_rows=counted.rows - counted.real_rows,
                    prompt_rows=counted.prompt_rows,
                    evicted_blocks=evictions - self._reported_evictions,
                ),
            )
            self._reported_evictions = evictions

    def _hand_out_result(self, running: _Running, handle: RequestHandle, reason: StopReason) -> None:
        with _ErrorsEndRequest(self, running.job):
            events = running.outputs[handle].last_events(reason, running.cache.reused)
            last = events[-1]
            assert isinstance(last, DoneEvent)
            self._report_end(running, running.job, handle, last.result)
            handle.put_events(events)

    def _report_admission(self, job: Job, moment: float, reused: int) -> None:
        if self._observer is not None:
            for _ in job.unfinished:
                report = AdmissionReport(moment - job.submitted, len(job.prompt_ids), reused)
                self._report(self._observer.request_admitted, report)

    def _report_end(
        self, running: _Running | None, job: Job, handle: RequestHandle, end: GenerationResult | BaseException
    ) -> None:
        """Report an end, a result or an error, to the observer. `running` is None if the request never ran."""
        if self._observer is None:
            return
        result, error = (end, None) if isinstance(end, GenerationResult) else (None, end)
        self._report(
            self._observer.request_ended,
            EndReport(
                stop_reason=None if result is None else result.stop_reason,
                error=error,
                prompt_tokens=len(job.prompt_ids),
                tokens=0 if result is None else result.tokens,
                steps=0 if running is None else running.loop.steps,
                seconds=time.perf_counter() - job.submitted,
                first_text_seconds=None if running is None else running.outputs[handle].first_text_seconds,
                cancelled=handle.cancelled,
            ),
        )

    def _report(self, receive: Callable[[Report], None], report: Report) -> None:
        """Pass a report to a method of the observer. Its first exception is logged, and none is raised."""
        try:
            receive(report)
        except BaseException:  # even SystemExit, which would end every request on the engine's thread
            if not self._observer_failed:
                _LOG.exception("the engine's observer raised in %s; later exceptions are not logged", receive.__name__)
            self._observer_failed = True


class _ErrorsEndRequest(AbstractContextManager[None]):
    """Context that catches `_own_errors` of `pool` as those of the request `job`, which end it. Exceptions of signal
    handlers are the caller's. A round enters several per request, and a generator takes three times as long."""

    def __init__(self, pool: RequestPool, job: Job) -> None:
        self._pool, self._job = pool, job

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, self._pool._own_errors):
            return False
        raise_if_from_handler(error)
        self._pool.end_failed(self._job, error)
        return True


def _rows_to_allocate(job: Job, cached: int) -> int:
    """Return the rows that a device may still allocate for a request with `cached` rows, in tiles."""
    return tiles(job.max_cache_rows) - cached // TILE * TILE
