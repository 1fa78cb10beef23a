"""The contract on an NVIDIA GPU by either TensorRT library: plans from lopa-export tensorrt, with caches in device
memory.

This module selects a bundle's engine for the device, and rejects engines that were not verified. TensorRT and the CUDA
runtime are imported when a session opens.
"""

from contextlib import ExitStack
from functools import partial
from types import ModuleType

from lopa.runtime.accelerator.device_session import DeviceSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import check_buckets_fit
from lopa.runtime.cuda.cuda_calls import CudaCalls, load_cuda
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.cuda.graphs import CudaGraphs
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.device_worker import ThreadedSession
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.tensorrt.tensorrt_forward import TensorRTForward
from lopa.runtime.tensorrt.tensorrt_library import LIBRARIES, library_of_device
from lopa.runtime.tensorrt.tensorrt_manifest import StoredTensorRTEngine, engine_for_device, mark_verified


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> ThreadedSession:  # noqa: ARG001
    """Open the bundle's engine on "tensorrt:N" or "tensorrt-rtx:N". `threads` applies to CPUs only.

    Raises BadInputError for another device, and for a missing, unusable or unverified engine. Raises
    MissingBackendError if TensorRT, the CUDA runtime or the device is missing, and EngineFailedError.
    """
    found, gpu = engine_from_device(bundle, device), cuda_device(_number(device))
    if not found.engine.is_verified_on(gpu):
        raise BadInputError(
            f"{found.folder} was not verified on {gpu.name}",
            expected="an engine whose tokens were compared with another device's",
            remedy=f"run lopa-export verify {bundle.path} --device {device}",
        )
    return session_from_engine(bundle, device, found)


def engine_from_device(bundle: Bundle, device: str) -> StoredTensorRTEngine:
    """Return the engine that `device` runs, verified or not. Raises like `open_session`."""
    library, number = library_of_device(device), _number(device)
    trt = library.module()
    return engine_for_device(bundle.with_dialect("standard"), cuda_device(number), trt.__version__, library)


def session_from_engine(bundle: Bundle, device: str, found: StoredTensorRTEngine) -> ThreadedSession:
    """Open a session on an engine from `engine_from_device`, verified or not. Raises like `open_session`."""
    trt, cuda = library_of_device(device).module(), load_cuda()
    standard = bundle.with_dialect("standard")
    check_buckets_fit(
        found.engine.buckets, bundle.manifest, source=str(found.folder), remedy=found.engine.target.rebuild
    )
    return ThreadedSession(device, partial(_open_on_thread, trt, cuda, found, standard, device))


def mark_verified_on(found: StoredTensorRTEngine, device: str) -> None:
    """Record that the engine's tokens were verified on `device`. Raises like `mark_verified`."""
    mark_verified(found, cuda_device(_number(device)))


def _open_on_thread(
    trt: ModuleType, cuda: CudaCalls, found: StoredTensorRTEngine, bundle: Bundle, device: str
) -> DeviceSession:
    """Open the session on the thread that will use it."""
    number = _number(device)
    with ExitStack() as stack:
        memory = CudaMemory(cuda, number)
        stack.callback(memory.close)
        shape, vocabulary = cache_shape_from_manifest(bundle.manifest), bundle.manifest.dimensions.vocab_size
        engine = TensorRTForward(trt, found, bundle, cuda_device(number), memory, CudaGraphs(cuda, memory.stream))
        stack.callback(engine.close)
        session = DeviceSession(engine, device, shape, vocabulary, fixed_addresses=True, bucket_for=engine.bucket_for)
        stack.pop_all()
    return session


def _number(device: str) -> int:
    return parse_device(device, *LIBRARIES).number
