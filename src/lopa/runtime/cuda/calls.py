"""Calls of the CUDA runtime through NVIDIA's cuda-bindings, with their codes checked. Knows no order of calls.

cuda-bindings has the CUDA runtime in itself: besides the package only the driver of the GPU is needed.
"""

import importlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from lopa.runtime.accelerator.memory import take_all
from lopa.runtime.errors import EngineFailedError, MissingBackendError
from lopa.runtime.install_hint import pip_install

MODULE = "cuda.bindings.runtime"
_REMEDIES = {
    "cudaErrorMemoryAllocation": "end other programs on the device, decode fewer requests at a time, or plan smaller "
    "buckets",
    "cudaErrorInvalidDevice": "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cudaErrorNoDevice": "check nvidia-smi and CUDA_VISIBLE_DEVICES",
    "cudaErrorInsufficientDriver": "install the driver of an NVIDIA GPU, a version for CUDA 13",
}


class CudaError(EngineFailedError):
    """A call of the CUDA runtime failed. `code` is the name of what it returned."""

    def __init__(self, call: str, code: str, meaning: str) -> None:
        super().__init__(
            f"{call} returned {code}: {meaning}",
            expected="cudaSuccess",
            remedy=_REMEDIES.get(
                code,
                "look the code up in NVIDIA's documentation of cudaError_t; open the device "
                "again, since an error of an earlier call may be reported by a later one",
            ),
        )
        self.code = code


class Captures:
    """Keeps calls of other threads out while one captures a CUDA graph in the global mode, as ONNX Runtime does.

    Then whatever may allocate or wait is forbidden in the whole process: it fails, and so does the capture.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls = 0
        self._capturing: int | None = None
        """The thread that does."""

    @contextmanager
    def forbidden(self) -> Iterator[None]:
        """While a call is made during which no other thread may capture. Waits for one that does."""
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
    def alone(self) -> Iterator[None]:
        """While this thread captures. Waits for all calls and captures of others; not for use within a call."""
        with self._changed:
            self._changed.wait_for(lambda: self._capturing is None)
            self._capturing = threading.get_ident()  # from here on nothing begins
            self._changed.wait_for(lambda: self._calls == 0)
        try:
            yield
        finally:
            with self._changed:
                self._capturing = None
                self._changed.notify_all()


CAPTURES = Captures()
"""Of this process."""


class CudaCalls:
    """The module, by the names of its functions."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        """The module itself, for its constants."""

    def __call__(self, name: str, *arguments: Any, allowed: tuple[str, ...] = ()) -> Any:
        """Call function `name`; its value, or None where it has none.

        Raises CudaError for any code but cudaSuccess and those in `allowed`.
        """
        with CAPTURES.forbidden():
            code, *values = getattr(self.runtime, name)(*arguments)
        if code != self.runtime.cudaError_t.cudaSuccess and code.name not in allowed:
            _, meaning = self.runtime.cudaGetErrorString(code)
            raise CudaError(name, code.name, meaning.decode())
        return values[0] if values else None

    def all(self, steps: Iterable[tuple[Any, ...]]) -> None:
        """Make every call, a name and its arguments each, whatever fails; raise the first failure at the end."""
        take_all(partial(self, *step) for step in steps)


def calls_of_installed_cuda() -> CudaCalls:
    """Import cuda-bindings. Raises MissingBackendError when they are not here or cannot be loaded."""
    try:
        return CudaCalls(importlib.import_module(MODULE))
    except ImportError as error:
        raise MissingBackendError(
            f"the CUDA runtime cannot be used from Python: {error}",
            expected="NVIDIA's package cuda-bindings, version 13",
            remedy=pip_install("gpu"),
        ) from error
