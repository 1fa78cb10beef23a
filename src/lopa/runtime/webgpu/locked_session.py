"""A session on WebGPU that excludes all others of the process while it works.

ONNX Runtime's plug-in has one device per process for all its sessions. Calls from two threads at once end the process
(onnxruntime-ep-webgpu 0.4.0).
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from lopa.runtime.sessions.relayed_session import RelayedSession
from lopa.runtime.sessions.session import Session

T = TypeVar("T")

_GPU_LOCK = threading.Lock()


class LockedSession(RelayedSession):
    """Session whose calls hold the lock of the process."""

    def __init__(self, device: str, open_inner: Callable[[], Session]) -> None:
        """Open the inner session. Raises any exception of `open_inner`."""
        super().__init__(device)
        self._inner = self._run(open_inner)

    def close(self) -> None:
        """Close the inner session. Closing twice is allowed."""
        if not self._closed:
            self._run(self._inner.close)
            self._closed = True

    def _run(self, work: Callable[[], T]) -> T:
        self._check_open()
        with _GPU_LOCK:
            return work()
