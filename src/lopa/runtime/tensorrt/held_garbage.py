"""No search for garbage while TensorRT holds its locks and calls Python. Knows nothing of TensorRT.

TensorRT logs while it holds a lock that the end of a builder or a runtime takes as well. Where Python looks for garbage
in that moment and finds one that an exception kept, it waits for ever (seen in 1.7.1 of TensorRT for RTX).
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_blocks: list[bool] = []
"""Those that run now: whether there was a search before the first of them."""


@contextmanager
def garbage_held() -> Iterator[None]:
    """While the block runs nothing is searched for garbage, in any thread of the process."""
    with _LOCK:
        _blocks.append(_blocks[0] if _blocks else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            if _blocks.pop() and not _blocks:
                gc.enable()
