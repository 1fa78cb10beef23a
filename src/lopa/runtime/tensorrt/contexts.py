"""How execution contexts are made: by TensorRT in one call, by TensorRT for RTX with what it keeps from run to run.

Knows no shape and no forward.
"""

import logging
import re
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.errors import LopaError
from lopa.runtime.files.output_file import write_whole
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.tensorrt.library import RTX
from lopa.runtime.tensorrt.manifest import StoredTensorRTEngine

_MAX_CACHE_BYTES = 2**30
_log = logging.getLogger(__name__)


class Contexts(Protocol):
    """Makes the contexts of one engine; their memory for what lies between layers is given to them."""

    def new(self, *, one_shape: bool) -> Any:
        """An IExecutionContext, None when there is no memory for it. `one_shape`: it will only ever have one."""

    def keep(self) -> None:
        """Write down what another process need not work out again; forgets the engine."""


def contexts_of_engine(trt: ModuleType, engine: Any, found: StoredTensorRTEngine, device: CudaDevice) -> Contexts:
    """Those of `engine`, which was opened from `found` on `device`."""
    if found.engine.target.library == RTX.name:
        return RtxContexts(trt, engine, runtime_cache_file(found.folder, device))
    return TensorRTContexts(trt, engine)


class TensorRTContexts:
    """The Contexts protocol for an engine whose kernels are in its plan."""

    def __init__(self, trt: ModuleType, engine: Any) -> None:
        self._strategy = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        self._engine = engine

    def new(self, *, one_shape: bool) -> Any:  # noqa: ARG002
        """Contexts.new."""
        return self._engine.create_execution_context(self._strategy)

    def keep(self) -> None:
        """Contexts.keep."""
        self._engine = None


class RtxContexts:
    """The Contexts protocol for an engine whose kernels are made where it is opened: they are kept in a file.

    A context of one shape waits for the kernels of that shape when it first runs, so that what is captured later is
    final. One of many shapes runs general kernels at once and gets those of a shape while it runs on ("Working with
    Dynamic Shapes" of TensorRT for RTX's documentation: EAGER and LAZY).
    """

    def __init__(self, rtx: ModuleType, engine: Any, cache_file: Path) -> None:
        self._rtx = rtx
        self._engine = engine
        self._file = cache_file
        self._cache = engine.create_runtime_config().create_runtime_cache()
        self._read = self._kept_before()

    def new(self, *, one_shape: bool) -> Any:
        """Contexts.new."""
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
        """Contexts.keep; a folder that cannot be written is no error: the kernels are made again next time."""
        cache, self._cache, self._engine = self._cache, None, None
        if cache is None:
            return
        kernels = bytes(cache.serialize())
        if kernels in (b"", self._read):
            return
        try:
            write_whole(self._file, kernels)
        except LopaError as error:
            _log.info("the kernels of %s were not kept: %s", self._file.parent.name, error)

    def _kept_before(self) -> bytes:
        """What was read of the file: nothing when there is none, or TensorRT takes it for another machine's."""
        if not self._file.exists():
            return b""
        try:
            kernels = bytes_from_file(
                self._file, expected="kernels", remedy=f"remove {self._file}", max=_MAX_CACHE_BYTES
            )
        except LopaError as error:
            _log.warning("kernels are made again: %s", error)
            return b""
        return kernels if self._cache.deserialize(kernels) else b""


def runtime_cache_file(folder: Path, device: CudaDevice) -> Path:
    """Where the kernels that were made for a model of GPU are kept, beside the plan they belong to."""
    return folder / f"kernels-{slug_of_gpu(device.name)}.cache"


def slug_of_gpu(name: str) -> str:
    """The name of a GPU as it stands in the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())
