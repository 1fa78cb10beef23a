"""A session whose calls are passed to another one in some way: on a thread, under a lock, or with typed errors only."""

import weakref
from collections.abc import Callable
from operator import methodcaller
from typing import Concatenate, ParamSpec, TypeVar

from lopa.runtime.contract import ENTROPY, TOP_K, TOPK_IDS, TOPK_LOGPROBS, Statistics
from lopa.runtime.errors import DeviceMemoryError, converted_device_errors
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket

P = ParamSpec("P")
T = TypeVar("T")


class SessionCaller:
    """Object that makes calls of an inner session."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner

    @property
    def device(self) -> str:
        """Device name of the inner session."""
        return self._inner.device

    @property
    def rows_per_forward(self) -> int | None:
        """Value of the inner session."""
        return self._inner.rows_per_forward

    def _run(self, work: Callable[[Session], T]) -> T:
        """Return the result of `work`. A subclass applies its context here."""
        return work(self._inner)


def passed_on(method: Callable[Concatenate[Session, P], T]) -> Callable[Concatenate[SessionCaller, P], T]:
    """Return a method that calls the `method` of Session on the inner session."""

    def call(caller: SessionCaller, /, *arguments: P.args, **named: P.kwargs) -> T:
        work: Callable[[Session], T] = methodcaller(method.__name__, *arguments, **named)
        return caller._run(work)

    return call


class WrappedSession(SessionCaller):
    """Session whose calls each run as `_run(work)` on an inner session."""

    start = passed_on(Session.start)
    wait = passed_on(Session.wait)
    commit = passed_on(Session.commit)
    read_rows = passed_on(Session.read_rows)
    release = passed_on(Session.release)
    append_rows = passed_on(Session.append_rows)
    keep_rows = passed_on(Session.keep_rows)
    append_kept = passed_on(Session.append_kept)
    free_rows = passed_on(Session.free_rows)
    shorten = passed_on(Session.shorten)
    prefix_length = passed_on(Session.prefix_length)
    free = passed_on(Session.free)
    close = passed_on(Session.close)


def _check_shapes(statistics: Statistics, sampled: int) -> None:
    for name, found, expected in (
        (TOPK_IDS, statistics.topk_ids.shape, (sampled, TOP_K)),
        (TOPK_LOGPROBS, statistics.topk_logprobs.shape, (sampled, TOP_K)),
        (ENTROPY, statistics.entropy.shape, (sampled,)),
    ):
        if found != expected:
            raise ValueError(f"the device returned {name} of shape {found}, expected {expected}")


class TypedSession(WrappedSession):
    """Session wrapper whose calls raise only LopaError."""

    def _run(self, work: Callable[[Session], T]) -> T:
        try:
            return work(self._inner)
        except Exception:  # only now, as entering a context takes longer than most calls
            with converted_device_errors(self.device):
                raise

    def wait(self, ticket: Ticket) -> Statistics:
        """Wait for a forward and check the shapes of its statistics."""
        with converted_device_errors(self.device):
            statistics = self._inner.wait(ticket)
            _check_shapes(statistics, len(ticket.batch.sampled_rows))
        return statistics

    def close(self) -> None:
        """Close the wrapped session."""
        with converted_device_errors(self.device, "closing"):
            self._inner.close()


class RetryingSession(TypedSession):
    """Session wrapper that repeats a call after a device had no memory for it, as long as `make_room` returns True."""

    def __init__(self, inner: Session, make_room: Callable[[DeviceMemoryError], bool]) -> None:
        super().__init__(inner)
        self._make_room = weakref.WeakMethod(make_room)  # its owner has this session

    def _run(self, work: Callable[[Session], T]) -> T:
        while True:
            try:
                return super()._run(work)
            except DeviceMemoryError as error:
                make_room = self._make_room()
                if make_room is None or not make_room(error):
                    raise
