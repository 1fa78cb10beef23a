"""The owner of a decoder's session: one round at a time, or an engine for its whole life.

A session keeps state between a forward and its commits, so nothing else may use it in between. Threads take turns. What
would interrupt a round of its own thread (a signal handler, a finalizer) is rejected, because it can neither wait nor
run. Signal handlers run between any two bytecodes and may raise. The lock is therefore a C object in a `with`
statement, and no cleanup depends on a call that comes after it was acquired.
"""

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from lopa.runtime.errors import DecoderBusyError, DecoderClosedError, is_from_signal_handler

_LOG = logging.getLogger(__name__)
_all: "weakref.WeakSet[Ownership]" = weakref.WeakSet()
_gate = threading.RLock()
"""Every round passes it. It closes at the interpreter's end."""
Result = TypeVar("Result")


class Ownership:
    """Access to a session in turns, until it is closed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._busy = False
        """True while the thread that has the lock uses the session."""
        self._later: deque[Callable[[], None]] = deque()
        self._user: weakref.ref[object] | None = None
        self._close_user: weakref.WeakMethod[Callable[[], None]] | None = None
        self._end: DecoderClosedError | None = None
        """Error of every use after the end."""
        _all.add(self)

    def is_given_to(self, user: object) -> bool:
        """Return True if `user` has the session exclusively."""
        return self._user is not None and self._user() is user

    def run(self, work: Callable[[], Result], user: object = None) -> Result:
        """Return the result of `work`, which uses the session, once no other thread does.

        Raises DecoderBusyError at once if the session is given to another than `user`, and if this thread was
        interrupted while it uses the session. Raises DecoderClosedError after the end.
        """
        self.check(user)
        try:
            with _gate:
                pass
            with self._lock:
                self.check(user)
                if self._busy:
                    raise _busy_error("a call interrupts a round of the same thread, as signal handlers do")
                try:
                    self._busy = True
                    self._run_queue()
                    return work()
                finally:
                    self._busy = False
        finally:
            if self._later:  # added by others during the round
                self._run_later()

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` now, or after the round that is running. Its errors are logged, since nobody may be waiting."""
        self._later.append(work)
        self._run_later()

    def give(self, user: object, close: Callable[[], None]) -> None:
        """Give the session to `user`, an engine's pool, until it is collected or taken back. `close` is a method that
        ends this use. Raises as `run` does."""

        def give() -> None:
            self._user, self._close_user = weakref.ref(user), weakref.WeakMethod(close)

        self.run(give)

    def take_back(self, user: object) -> None:
        """End the use of `user`, if it has the session."""
        if self.is_given_to(user):
            self._user = None

    def end(self, error: DecoderClosedError, free: Callable[[], None]) -> None:
        """Close the engine that has the session, reject later uses with `error`, and call `free` when no round runs."""
        close = None if self._user is None or self._user() is None else self._close_user and self._close_user()
        if close is not None:
            close()
        if self._end is None:
            self._end = error
            self.later(free)

    def check(self, user: object = None) -> None:
        """Raise the error of `run` if `user` cannot use the session now or later."""
        if self._end is not None:
            raise self._end.with_received(self._end.received)
        current = None if self._user is None else self._user()
        if current is not None and current is not user:
            raise _busy_error("an engine uses it")

    def _run_later(self) -> None:
        """Run the queue unless the session is in use. The user then runs it at the end of its round."""
        try:
            if self._lock.acquire(blocking=False) and not self._busy:
                try:
                    self._busy = True
                    self._run_queue()
                finally:
                    self._busy = False
        finally:
            try:
                self._lock.release()
            except RuntimeError:  # another thread has it
                pass

    def _run_queue(self) -> None:
        while self._later:
            try:
                self._later[0]()
            except Exception as error:
                if is_from_signal_handler(error):
                    raise  # the work stays in the queue
                _LOG.warning("cleaning up after a request failed: %s", error)
            self._later.popleft()

    def _start_child(self) -> None:
        """Reject every use in a forked child. The session's threads are not there, and freeing it waits for them."""
        self._lock, self._busy, self._user = threading.RLock(), False, None
        self._later.clear()
        self._end = DecoderClosedError(
            "the decoder was opened by another process, which this one was forked from",
            expected="a decoder of this process",
            remedy="open the bundle after the fork, or start processes with spawn",
        )


def _busy_error(received: str) -> DecoderBusyError:
    return DecoderBusyError(
        f"the decoder is in use: {received}",
        expected="a decoder without an engine, and a call outside its rounds",
        remedy="submit the request to a lopa.Engine, which serves any number of callers",
    )


def _start_child() -> None:
    for each in list(_all):
        each._start_child()


def _stop_use() -> None:
    """Keep other threads out of native code at the interpreter's end, which would abort the process there.

    Rounds that run end first, whatever interrupts this wait. Daemon threads then wait at the gate for ever.
    """
    for lock in (_gate, *(each._lock for each in list(_all))):
        held = False
        while not held:
            try:
                held = lock.acquire()
            except BaseException:  # a second Ctrl-C
                _LOG.debug("waiting for the end of a round")


atexit.register(_stop_use)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_child)
