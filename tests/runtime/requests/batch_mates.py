"""Helpers for tests of concurrent requests: results of single requests, and ways to stall a request or make it fail."""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from lopa.runtime import Decoder, DoneEvent, GenerationConfig, GenerationResult, RequestHandle
from lopa.runtime.contract import Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.decoding.step import Step
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

WAIT = 60.0
"""Seconds after which a handle counts as lost."""


def alone(decoder: Decoder, prompt: Any, config: GenerationConfig) -> GenerationResult:
    *_, last = decoder.stream(prompt, config)
    assert isinstance(last, DoneEvent)
    return dataclasses.replace(last.result, seconds=0)


def decoded(
    decoder: Decoder, prompt: Any, config: GenerationConfig | None = None, **options: Any
) -> tuple[GenerationResult, list[Step]]:
    """Return the result of one prompt and the steps of its decode."""
    steps: list[Step] = []
    result: GenerationResult = decoder.generate(prompt, config, on_step=lambda _, step: steps.append(step), **options)
    return result, steps


def result_of(handle: RequestHandle) -> GenerationResult:
    return dataclasses.replace(handle.result(WAIT), seconds=0)


def with_stored_prompt(alone: GenerationResult, result: GenerationResult) -> GenerationResult:
    """Return the result `alone`, adjusted to a request whose `result` may use stored rows.

    Fast-dLLM v2's cache begins with a round that only caches the prompt's rows. That round is skipped if all of them
    are stored.
    """
    if result.params.cache != "sub_block" or not result.cached_tokens or result.steps == alone.steps:
        return alone
    steps = alone.steps - 1
    return dataclasses.replace(alone, steps=steps, tokens_per_forward=alone.tokens / steps)


class Gate:
    """A callback that stalls a request's first step until opened."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, _: Step) -> None:
        self.reached.set()
        assert self._open.wait(WAIT)

    def open(self) -> None:
        self._open.set()


class Observer:
    """An observer that passes every report to a function."""

    def __init__(self, note: Callable[[Any], object]) -> None:
        self._note = note

    def round_ended(self, report: Any) -> None:
        self._note(report)

    def request_admitted(self, report: Any) -> None:
        self._note(report)

    def request_ended(self, report: Any) -> None:
        self._note(report)


class FailingSession:
    """A session that raises in one method once enabled."""

    def __init__(self, session: Any, method: str) -> None:
        self._session, self._method = session, method
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        if self.broken and name == self._method:
            raise OSError("the device is gone")
        return getattr(self._session, name)


class CountingSession(WrappedSession):
    """A session that records the requests, the batch and the statistics of every forward."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.forwards: list[tuple[int, ...]] = []
        self.batches: list[PackedBatch] = []
        self.statistics: list[Statistics] = []

    def wait(self, ticket: Ticket) -> Statistics:
        self.forwards.append(ticket.batch.requests)
        self.batches.append(ticket.batch)
        self.statistics.append(self._inner.wait(ticket))
        return self.statistics[-1]


class StalledSession(CountingSession):
    """A session that stalls every forward until it is allowed."""

    def __init__(self, session: Any, allowed: int) -> None:
        super().__init__(session)
        self._changed = threading.Condition()
        self._allowed, self._stalled = allowed, False

    def wait(self, ticket: Ticket) -> Statistics:
        with self._changed:
            self._stalled = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self.forwards) < self._allowed, WAIT)
            self._stalled = False
        return super().wait(ticket)

    def wait_until_stalled(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._stalled and len(self.forwards) >= self._allowed, WAIT)

    def allow(self, more: int) -> None:
        with self._changed:
            self._allowed += more
            self._changed.notify_all()
