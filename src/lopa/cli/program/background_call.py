"""A call on a daemon thread, so that a signal ends the command during one long native call.

Python runs signal handlers in the main thread, between two bytecodes. ONNX Runtime opens a graph in a single native
call. If the main thread made that call, Ctrl-C would have no effect until the graph is open.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar
from weakref import WeakSet

_Result = TypeVar("_Result")
_WAKE_SECONDS = 0.2
"""Seconds after which a waiting main thread looks for signals."""
_calls: WeakSet[Future[Any]] = WeakSet()
"""Calls whose thread or result is still in use."""


def start_call(function: Callable[[], _Result]) -> Future[_Result]:
    """Call `function` on a daemon thread and return the future of its result, which cannot be cancelled."""
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()
    _calls.add(future)

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # the caller raises it
            future.set_exception(error)

    threading.Thread(target=run, name="lopa-background-call", daemon=True).start()
    return future


def wait_for_call(call: Future[Any]) -> None:
    """Wait until `call` has ended. A signal ends the wait.

    A wait without a time limit would miss a signal that arrives just before the thread blocks.
    """
    while not wait([call], _WAKE_SECONDS).done:
        pass


def is_call_running() -> bool:
    """Return whether a call is still running, for example after a signal ended the wait for it."""
    return any(not call.done() for call in _calls)
