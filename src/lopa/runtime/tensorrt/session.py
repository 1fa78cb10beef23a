"""The contract on an NVIDIA GPU by either TensorRT: plans of lopa-export tensorrt, caches in the device's memory.

Knows which engine of a bundle is for the device, and that it decodes only after it was verified. TensorRT and the CUDA
runtime are imported when a session is opened.
"""

from contextlib import ExitStack
from functools import partial
from types import ModuleType

from lopa.runtime.accelerator.session import DeviceSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import check_buckets_fit
from lopa.runtime.cuda.calls import CudaCalls, calls_of_installed_cuda
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.cuda.graphs import CudaGraphs
from lopa.runtime.cuda.memory import CudaMemory
from lopa.runtime.cuda.row_kernel import row_kernel_from_plugins
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.threaded_session import ThreadedSession
from lopa.runtime.tensorrt.forward import TensorRTForward
from lopa.runtime.tensorrt.library import LIBRARIES, library_of_device
from lopa.runtime.tensorrt.manifest import StoredTensorRTEngine, engine_for_device, mark_verified


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> ThreadedSession:  # noqa: ARG001
    """Open the bundle's engine on "tensorrt:N" or "tensorrt-rtx:N"; `threads` is for processors.

    Raises BadInputError for another device, and when the bundle has no engine for it or one that cannot be used or was
    not verified; MissingBackendError without TensorRT, the CUDA runtime or the device; EngineFailedError.
    """
    found, gpu = engine_from_device(bundle, device), cuda_device(_number(device))
    if not found.engine.is_verified_on(gpu):
        raise BadInputError(
            f"{found.folder} was not verified on {gpu.name}: that TensorRT could build it does not say that its tokens "
            "are right",
            expected="an engine whose tokens were held against another device's",
            remedy=f"lopa-export verify {bundle.path} --device {device}",
        )
    return session_from_engine(bundle, device, found)


def engine_from_device(bundle: Bundle, device: str) -> StoredTensorRTEngine:
    """The engine that `device` runs, verified or not; raises as `open_session`."""
    library, number = library_of_device(device), _number(device)
    trt = library.module()
    return engine_for_device(bundle.of_dialect("standard"), cuda_device(number), trt.__version__, library)


def session_from_engine(bundle: Bundle, device: str, found: StoredTensorRTEngine) -> ThreadedSession:
    """A session on an engine that `engine_from_device` found, verified or not; raises as `open_session`."""
    trt, cuda = library_of_device(device).module(), calls_of_installed_cuda()
    standard = bundle.of_dialect("standard")
    check_buckets_fit(
        found.engine.buckets, bundle.manifest, source=str(found.folder), remedy=found.engine.target.rebuild
    )
    return ThreadedSession(device, partial(_opened, trt, cuda, found, standard, device))


def mark_verified_on(found: StoredTensorRTEngine, device: str) -> None:
    """Write down that the engine's tokens were verified on `device`; raises as `mark_verified`."""
    mark_verified(found, cuda_device(_number(device)))


def _opened(
    trt: ModuleType, cuda: CudaCalls, found: StoredTensorRTEngine, bundle: Bundle, device: str
) -> DeviceSession:
    """On the thread that will use it."""
    number = _number(device)
    with ExitStack() as opened:
        memory = CudaMemory(cuda, number)
        opened.callback(memory.close)
        shape, vocabulary = cache_shape_from_manifest(bundle.manifest), bundle.manifest.dimensions.vocab_size
        if found.engine.flags.plugins:
            memory.use_row_kernel(row_kernel_from_plugins(number, shape))
        engine = TensorRTForward(trt, found, bundle, cuda_device(number), memory, CudaGraphs(cuda, memory.stream))
        opened.callback(engine.close)
        session = DeviceSession(engine, device, shape, vocabulary, fixed_addresses=True, bucket_for=engine.bucket_for)
        opened.pop_all()
    return session


def _number(device: str) -> int:
    return parse_device(device, *LIBRARIES).number
