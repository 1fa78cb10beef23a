"""Creation of execution contexts, and whether GPU memory has room for another one.

TensorRT needs one call, and TensorRT for RTX needs a runtime config with a kernel cache. Contexts share the memory for
activations between layers, but each also has its own memory, whose size TensorRT does not report. It is measured as the
decrease of free GPU memory when a context is created.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.errors import LopaError
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.tensorrt.tensorrt_library import RTX
from lopa.runtime.tensorrt.tensorrt_manifest import StoredTensorRTEngine

_MAX_CACHE_BYTES = 2**30
_log = logging.getLogger(__name__)


class Contexts(Protocol):
    """Factory for the contexts of one engine. The caller provides their memory for activations."""

    def new(self, *, one_shape: bool) -> Any:
        """Return an IExecutionContext, or None if memory is full. `one_shape` means that it will have only one
        shape.
        """

    def keep(self) -> None:
        """Save the compiled kernels for other processes, if there are any, and release the engine."""


def contexts_of_engine(trt: ModuleType, engine: Any, found: StoredTensorRTEngine, device: CudaDevice) -> Contexts:
    """Return the contexts of `engine`, which was opened from `found` on `device`."""
    if found.engine.target.library == RTX.name:
        return RtxContexts(trt, engine, runtime_cache_file(found.folder, device))
    return TensorRTContexts(trt, engine)


class TensorRTContexts:
    """Contexts of an engine whose kernels are in its plan."""

    def __init__(self, trt: ModuleType, engine: Any) -> None:
        self._strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        self._engine = engine

    def new(self, *, one_shape: bool) -> Any:  # noqa: ARG002
        """Return a new context."""
        return self._engine.create_execution_context(self._strategy)

    def keep(self) -> None:
        """Release the engine."""
        self._engine = None


class RtxContexts:
    """Contexts of an engine whose kernels are compiled on opening, and cached in a file.

    A context with one shape waits for that shape's kernels in its first run, so that a later capture is final (EAGER).
    A context with many shapes starts with general kernels, and gets specialized ones while it runs (LAZY). See "Working
    with Dynamic Shapes" in the documentation of TensorRT for RTX.
    """

    def __init__(self, rtx: ModuleType, engine: Any, cache_file: Path) -> None:
        self._rtx = rtx
        self._engine = engine
        self._file = cache_file
        self._cache = engine.create_runtime_config().create_runtime_cache()
        self._read = self._load_cache()

    def new(self, *, one_shape: bool) -> Any:
        """Return a new context."""
        rtx, config = self._rtx, self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(rtx.ExecutionContextAllocationStrategy.USER_MANAGED)
        config.set_runtime_cache(self._cache)
        config.dynamic_shapes_kernel_specialization_strategy = (
            rtx.DynamicShapesKernelSpecializationStrategy.EAGER
            if one_shape
            else rtx.DynamicShapesKernelSpecializationStrategy.LAZY
        )
        return self._engine.create_execution_context(runtime_config=config)

    def keep(self) -> None:
        """Save the kernel cache, and release the engine. If the folder is not writable, kernels are compiled again next
        time.
        """
        cache, self._cache, self._engine = self._cache, None, None
        if cache is None:
            return
        kernels = bytes(cache.serialize())
        if kernels in (b"", self._read):
            return
        try:
            write_atomically(self._file, kernels)
        except LopaError as error:
            _log.info("cannot save the compiled kernels of %s: %s", self._file.parent.name, error)

    def _load_cache(self) -> bytes:
        """Load the cache file. Return its content, or nothing if it is missing or TensorRT rejects it for this
        machine.
        """
        if not self._file.exists():
            return b""
        try:
            kernels = bytes_from_file(
                self._file, expected="a kernel cache", remedy=f"remove {self._file}", max=_MAX_CACHE_BYTES
            )
        except LopaError as error:
            _log.warning("compiling kernels again: %s", error)
            return b""
        return kernels if self._cache.deserialize(kernels) else b""


def runtime_cache_file(folder: Path, device: CudaDevice) -> Path:
    """Return the path of the kernel cache for a GPU model, next to the plan."""
    return folder / f"kernels-{gpu_slug(device.name)}.cache"


def gpu_slug(name: str) -> str:
    """Return the name of a GPU in the form used in file names."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())


Context = TypeVar("Context")


class ContextMemory:
    """Meter for the context memory of one engine, by profile."""

    def __init__(self, free_bytes: Callable[[], int], reserve: int) -> None:
        """Create a meter. `free_bytes` returns the GPU's free memory, of which `reserve` bytes are for other uses."""
        self._free_bytes = free_bytes
        self._reserve = reserve
        self._largest: dict[int, int] = {}
        """Largest measured size in bytes by profile. It is the maximum, because other programs use the GPU too."""

    def measure(self, profile: int, make: Callable[[], Context]) -> Context:
        """Create a context of `profile` with `make`, and measure it."""
        before = self._free_bytes()
        context = make()
        used = max(0, before - self._free_bytes())
        self._largest[profile] = max(used, self._largest.get(profile, 0))
        return context

    def has_room(self, profile: int) -> bool:
        """Return True if another context of `profile` leaves the reserve free. A context of `profile` must have been
        measured before."""
        return self._free_bytes() >= self._largest[profile] + self._reserve

    @property
    def needed(self) -> int:
        """Bytes of one context per measured profile, plus the reserve."""
        return sum(self._largest.values()) + self._reserve
