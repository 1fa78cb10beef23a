"""Checked calls of the CUDA runtime through NVIDIA's cuda-bindings.

cuda-bindings contains the CUDA runtime, so the package needs only the GPU driver in addition.
"""

import importlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lopa.runtime.accelerator.device_memory import run_all
from lopa.runtime.errors import EngineFailedError, MissingBackendError
from lopa.runtime.install_hint import pip_install

MODULE = "cuda.bindings.runtime"
_REMEDIES = {
    "cudaErrorMemoryAllocation": "stop other programs on the device, or decode fewer requests at once",
    "cudaErrorInvalidDevice": "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cudaErrorNoDevice": "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cudaErrorInsufficientDriver": "install an NVIDIA driver for CUDA 13, 580.65 or newer",
}


class CudaError(EngineFailedError):
    """A call of the CUDA runtime failed. `code` is the name of its error code."""

    def __init__(self, call: str, code: str, meaning: str) -> None:
        super().__init__(
            f"{call} returned {code}: {meaning}",
            expected="cudaSuccess",
            remedy=_REMEDIES.get(
                code,
                "see NVIDIA's documentation of cudaError_t; open the device "
                "again, because a later call may report an earlier error",
            ),
        )
        self.code = code


class CudaMemoryError(CudaError, MemoryError):
    """The device has no memory left."""


class CaptureLock:
    """Process-wide lock between CUDA graph captures and calls of other threads.

    ONNX Runtime captures in global mode. A call of another thread that may allocate or wait then fails, and so does the
    capture.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._capturing: int | None = None
        """Thread that captures, if any."""

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Wait for a running capture, then block captures by other threads during a call."""
        with self._changed:
            self._changed.wait_for(lambda: self._capturing in (None, threading.get_ident()))
            self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wait for the calls and captures of other threads, then block their calls while this thread captures. It must
        not be used within a call.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._capturing is None)
            self._capturing = threading.get_ident()  # other threads start no new call from here on
            self._changed.wait_for(lambda: self._calls == 0)
        try:
            yield
        finally:
            with self._changed:
                self._capturing = None
                self._changed.notify_all()


CAPTURE_LOCK = CaptureLock()
"""Lock of this process."""


class CudaCalls:
    """Functions of NVIDIA's module, called by name."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        """The module itself, for its constants."""

    def __call__(self, name: str, *arguments: Any, allowed: tuple[str, ...] = ()) -> Any:
        """Call function `name`, and return its value, or None if it has none.

        Raises CudaError for any code except cudaSuccess and those in `allowed`.
        """
        with CAPTURE_LOCK.shared():
            code, *values = getattr(self.runtime, name)(*arguments)
            if code != self.runtime.cudaError_t.cudaSuccess and code.name not in allowed:
                _, meaning = self.runtime.cudaGetErrorString(code)
                kind = CudaMemoryError if code.name == "cudaErrorMemoryAllocation" else CudaError
                raise kind(name, code.name, meaning.decode())
        return values[0] if values else None

    def all(self, steps: Iterable[tuple[Any, ...]]) -> None:
        """Make all calls, each a name with arguments, even if some fail. Raises the first failure at the end."""
        run_all(partial(self, *step) for step in steps)


def load_cuda() -> CudaCalls:
    """Import cuda-bindings. Raises MissingBackendError if it is missing or cannot be loaded."""
    try:
        return CudaCalls(importlib.import_module(MODULE))
    except ImportError as error:
        raise MissingBackendError(
            f"cannot load the CUDA runtime: {error}",
            expected="NVIDIA's package cuda-bindings, version 13",
            remedy=pip_install("gpu"),
        ) from error
