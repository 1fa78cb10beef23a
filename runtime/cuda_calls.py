"""Calls of the CUDA runtime through NVIDIA's cuda-bindings, with their codes checked. Knows no order of calls.

cuda-bindings has the CUDA runtime in itself: besides the package only the driver of the GPU is needed.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from lopa.runtime.errors import EngineFailedError, MissingBackendError

MODULE = "cuda.bindings.runtime"
_REMEDIES = {
    "cudaErrorMemoryAllocation": "end other programs on the device, decode fewer requests at a time, or plan smaller "
    "gears",
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


class CudaCalls:
    """The module, by the names of its functions."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        """The module itself, for its constants."""

    def __call__(self, name: str, *arguments: Any, allowed: tuple[str, ...] = ()) -> Any:
        """Call function `name`; its value, or None where it has none.

        Raises CudaError for any code but cudaSuccess and those in `allowed`.
        """
        code, *values = getattr(self.runtime, name)(*arguments)
        if code != self.runtime.cudaError_t.cudaSuccess and code.name not in allowed:
            _, meaning = self.runtime.cudaGetErrorString(code)
            raise CudaError(name, code.name, meaning.decode())
        return values[0] if values else None

    def all(self, steps: Iterable[tuple[Any, ...]]) -> None:
        """Make every call, a name and its arguments each, whatever fails; raise the first failure at the end."""
        failures: list[CudaError] = []
        for name, *arguments in steps:
            try:
                self(name, *arguments)
            except CudaError as error:
                failures.append(error)
        if failures:
            raise failures[0]


def calls_of_installed_cuda() -> CudaCalls:
    """Import cuda-bindings. Raises MissingBackendError when they are not here or cannot be loaded."""
    try:
        return CudaCalls(importlib.import_module(MODULE))
    except ImportError as error:
        raise MissingBackendError(
            f"the CUDA runtime cannot be used from Python: {error}",
            expected="NVIDIA's package cuda-bindings, version 13",
            remedy='pip install "lopa-export[gpu]"',
        ) from error
