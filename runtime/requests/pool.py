"""Many requests on one session: every step is one round of all of them.

Knows which requests run and how their rounds share forwards. Does not know threads, queues, nor where requests come
from; one caller at a time, as the session itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lopa.runtime.algorithm.branch_budget import BranchBudget
from lopa.runtime.algorithm.decoding import Decoding, Step, StopReason
from lopa.runtime.algorithm.packing import MOST_PADDING, batch_from_windows, groups_from_windows, rows_of_windows
from lopa.runtime.algorithm.windows import Windows
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.answer import Answer
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.prompt_store import PromptStore, StoredPrompt
from lopa.runtime.sessions.session import Session, unused_request
from lopa.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Job:
    """A request as it was asked for, checked."""

    prompt_ids: Int64
    config: GenerationConfig
    budget: BranchBudget | None
    handle: RequestHandle
    drafts: bool
    on_step: Callable[[Step], None] | None
    submitted: float
    """On time.perf_counter's clock, as is `deadline`."""
    deadline: float | None

    @property
    def due(self) -> StopReason | None:
        """Why the request should end by now, if it should."""
        if self.handle.cancelled:
            return "cancelled"
        over = self.deadline is not None and time.perf_counter() >= self.deadline
        return "time_limit" if over else None


@dataclass(eq=False)
class _Running:
    job: Job
    decoding: Decoding
    answer: Answer


class RequestPool:
    """The running requests of one session, and their step.

    A request that fails leaves with its own error and harms no other; what the session raises comes out of `step` and
    leaves the pool to be closed.
    """

    def __init__(
        self,
        session: Session,
        manifest: Manifest,
        tokenizer: Tokenizer,
        prompts: PromptStore,
        *,
        most_padding: float = MOST_PADDING,
    ) -> None:
        """`most_padding` is how much padding a forward may have, as a share of its real rows."""
        self._session, self._manifest, self._tokenizer, self._prompts = session, manifest, tokenizer, prompts
        self._most_padding = most_padding
        self._running: list[_Running] = []

    def __len__(self) -> int:
        return len(self._running)

    def add(self, job: Job) -> None:
        """Let a request join the next step."""
        stored = self._prompts.find(job.prompt_ids, job.config)
        with _own_errors(job):
            running = self._opened(job, stored)
            self._running.append(running)
        if stored is not None and not job.handle.done:
            self._session.append_rows(running.decoding.request, stored.rows)

    def step(self) -> None:
        """One round of every request: windows, few forwards, each followed by its requests' choices."""
        self._let_go_of_ended()
        rounds: list[tuple[_Running, Windows]] = []
        for running in self._running:
            with _own_errors(running.job):
                rounds.append((running, running.decoding.open_round()))
        for group in groups_from_windows([windows for _, windows in rounds], self._most_padding):
            members = [rounds[index] for index in group]
            batch = batch_from_windows(
                [windows for _, windows in members],
                [running.decoding.request for running, _ in members],
                [running.job.config.temperature for running, _ in members],
            )
            statistics = self._session.forward(batch)
            for slot, (running, windows) in enumerate(members):
                with _own_errors(running.job):
                    rows = rows_of_windows(statistics, slot, windows)
                    step = running.decoding.finish_round(windows, rows, statistics.split)
                    self._after_round(running, windows, step)
        self._let_go_of_ended()

    def end_unstarted(self, job: Job, reason: StopReason) -> None:
        """Give a request that never ran its empty result."""
        with _own_errors(job):
            running = self._opened(job, None)
            running.decoding.stop(reason)
            _hand_out_result(running)

    def cancel_all(self) -> None:
        """End every request as cancelled."""
        for running in self._running:
            running.job.handle.cancel()
        self._let_go_of_ended()

    def hand_out_ended(self) -> None:
        """Give the requests that have ended their results; needs no session, and so can follow its failure."""
        for running in self._running:
            if running.answer.ended:
                _hand_out_result(running)

    def close(self) -> None:
        """Free every cache; handles that have not ended are left as they are."""
        for running in self._running:
            with suppress(Exception):  # a session that has failed may fail at this too
                self._session.release(running.decoding.request)
        self._running.clear()

    def _opened(self, job: Job, stored: StoredPrompt | None) -> _Running:
        row = None if stored is None else stored.last
        decoding = Decoding(
            self._session, unused_request(), job.prompt_ids, job.config, self._manifest, job.budget, row
        )
        answer = Answer(
            decoding, job.prompt_ids, job.config, self._tokenizer, drafts=job.drafts, submitted=job.submitted
        )
        return _Running(job, decoding, answer)

    def _after_round(self, running: _Running, windows: Windows, step: Step) -> None:
        job = running.job
        if step.number == 1 and windows.commit and self._prompts.takes(job.prompt_ids, job.config):
            # The rows are there until the next forward; a copy of the prompt's outlives it.
            rows = self._session.read_rows(running.decoding.request, step.winner, windows.commit)
            assert running.decoding.kept_row is not None
            self._prompts.add(job.prompt_ids, job.config, StoredPrompt(rows, running.decoding.kept_row.copy()))
        if job.on_step is not None:
            job.on_step(step)
        job.handle.put_events(running.answer.events_from_step(step))

    def _let_go_of_ended(self) -> None:
        """Requests that are over lose their cache and get their result."""
        for running in self._running:
            due = running.job.due
            if due is not None and not running.answer.ended:
                running.decoding.stop(due)
        ended = [running for running in self._running if running.answer.ended or running.job.handle.done]
        for running in ended:
            self._session.release(running.decoding.request)
            _hand_out_result(running)
        self._running = [running for running in self._running if running not in ended]


def _hand_out_result(running: _Running) -> None:
    """Give a request that has ended its result, if it has not failed, and has none yet."""
    if not running.job.handle.done:
        with _own_errors(running.job):
            running.job.handle.put_events(running.answer.last_events())


@contextmanager
def _own_errors(job: Job) -> Iterator[None]:
    """Whatever is raised inside is this request's alone, and ends it."""
    try:
        yield
    except Exception as error:
        job.handle.put_error(error)
