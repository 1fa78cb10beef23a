"""Deferral of Ctrl-C and SIGTERM during short writes."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the block has ended. Use it for short work that does not wait. It has no effect
    outside the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler is None if it was not set from Python. Python cannot restore such a handler.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for each in received:
            signal.raise_signal(each)
