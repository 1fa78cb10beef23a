"""Ctrl-C and SIGTERM that wait while a few bytes are written whole. Knows no files."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held() -> Iterator[None]:
    """What asks the process to end while the block runs takes its effect right behind it.

    For short work only, which waits for nobody. Outside the main thread, which alone hears of signals, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a handler that was not set from Python, which Python cannot set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for each in came:
            signal.raise_signal(each)
