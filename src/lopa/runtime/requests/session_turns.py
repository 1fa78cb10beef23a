"""Turns on a decoder's session, which has one user at a time.

Forwards of several users may be in flight, but a session is not thread-safe. Threads wait for each other's calls. A
call that interrupts a round of its own thread, from a signal handler or a finalizer, can neither wait nor run, and is
rejected. Signal handlers run between any two bytecodes and may raise. The lock is therefore a C object in a `with`
statement, and no cleanup depends on a call that follows the one that took it.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from lopa.runtime.errors import DecoderBusyError, DecoderClosedError, raise_if_from_handler

_LOG = logging.getLogger(__name__)
_gate, _sections = threading.RLock(), set[object]()
"""Every section of native code passes the gate, which closes at the interpreter's end. The set has those that run."""
left_by_fork: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Objects that need threads of this process. Their method `end_in_child` runs in a forked child."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def native_section(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return `function` as a section that the interpreter's end waits for. Native code aborts the process if its thread
    ends with the interpreter. A daemon thread that calls it later waits for ever.
    """

    @wraps(function)
    def section(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        token = object()
        try:
            with _gate:
                _sections.add(token)
            return function(*arguments, **named)
        finally:
            _sections.discard(token)

    return section


class SessionTurns:
    """Turns on one session until it is closed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._busy = False
        """True while the thread that has the lock uses the session."""
        self._later: deque[Callable[[], None]] = deque()
        self._end: DecoderClosedError | None = None
        """Error of every use after the end."""
        left_by_fork.add(self)

    def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which uses the session, once no other thread does.

        Raises DecoderBusyError if this thread was interrupted while it uses the session, and DecoderClosedError after
        the end.
        """
        self.check()
        try:
            return self._run(work)
        finally:
            if self._later:  # added by others during the turn
                self._run_later()

    @native_section
    def _run(self, work: Callable[[], Result]) -> Result:
        with self._lock:
            self.check()
            if self._busy:
                raise DecoderBusyError(
                    "the decoder is in use: this call interrupts a round of its own thread, as signal handlers do",
                    expected="a call outside the decoder's rounds",
                    remedy="call it after the round, or let a lopa.Engine decode on a thread of its own",
                )
            return self._use(work)

    def _use(self, work: Callable[[], Result]) -> Result:
        """Run the queue and `work`, with the lock."""
        try:
            self._busy = True
            while self._later:
                try:
                    self._later[0]()
                except Exception as error:
                    raise_if_from_handler(error)  # the work stays in the queue
                    _LOG.warning("cleaning up a session failed: %s", error)
                self._later.popleft()
            return work()
        finally:
            self._busy = False

    def later(self, work: Callable[[], None]) -> None:
        """Run `work` now, or after the turn that is running. Its errors are logged, since nobody may be waiting."""
        self._later.append(work)
        self._run_later()

    def end(self, free: Callable[[], None]) -> None:
        """Reject all further use, and call `free` when no turn is running. Only the first call counts."""
        if self._end is None:
            self._end = DecoderClosedError(
                "the decoder is closed", expected="an open decoder", remedy="open the bundle again"
            )
            self.later(free)

    def check(self) -> None:
        """Raise DecoderClosedError after the end."""
        if self._end is not None:
            raise self._end.with_received(self._end.received)

    def _run_later(self) -> None:
        """Run the queue unless the session is in use. Its user then runs it at the end of the turn."""
        try:
            if self._lock.acquire(blocking=False) and not self._busy:
                self._use(lambda: None)
        finally:
            try:  # no call before it, such as suppress(): a signal handler could raise there
                self._lock.release()
            except RuntimeError as error:
                raise_if_from_handler(error)
                _LOG.debug("another thread cleans up after its turn")

    def end_in_child(self) -> None:
        """Reject every use in a forked child. The session is not freed there, which would wait for its threads."""
        self._lock, self._busy = threading.RLock(), False
        self._later.clear()
        self._end = DecoderClosedError(
            "the decoder was opened by another process, which this one was forked from",
            expected="a decoder of this process",
            remedy="open the bundle after the fork, or start processes with spawn",
        )


def _start_child() -> None:
    global _gate
    _gate = threading.RLock()
    _sections.clear()
    for each in list(left_by_fork):
        each.end_in_child()


def _close_gate() -> None:
    """Wait for the sections of daemon threads, whatever interrupts this wait, and let no other one begin."""
    is_closed = False
    while _sections or not is_closed:
        try:
            is_closed = is_closed or _gate.acquire()
            time.sleep(0.001)
        except BaseException:  # a second Ctrl-C
            _LOG.debug("waiting for the end of a round")


atexit.register(_close_gate)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_child)
