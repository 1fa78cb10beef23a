"""A session on WebGPU that excludes all others of the process while it works.

ONNX Runtime's plug-in has one device per process for all its sessions. Calls from two threads at once end the process
(onnxruntime-ep-webgpu 0.4.0).
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.wrapped_session import WrappedSession

T = TypeVar("T")

_GPU_LOCK = threading.Lock()


class LockedSession(WrappedSession):
    """Session whose calls hold the lock of the process."""

    def __init__(self, open_inner: Callable[[], Session]) -> None:
        """Open the inner session. Raises any exception of `open_inner`."""
        with _GPU_LOCK:
            super().__init__(open_inner())

    def _run(self, work: Callable[[Session], T]) -> T:
        with _GPU_LOCK:
            return work(self._inner)
