"""Disable garbage collection while TensorRT holds its locks and calls Python.

TensorRT logs while holding a lock that the destructor of a builder or runtime also takes. If Python collects a builder
or runtime kept by an exception at that moment, the process deadlocks (seen in TensorRT for RTX 1.7.1).
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_blocks: list[bool] = []
"""One entry per running block: True if collection was enabled before the first block."""


@contextmanager
def garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection in the whole process while the block runs."""
    with _LOCK:
        _blocks.append(_blocks[0] if _blocks else gc.isenabled())
        gc.disable()
    try:
        yield
    finally:
        with _LOCK:
            if _blocks.pop() and not _blocks:
                gc.enable()
