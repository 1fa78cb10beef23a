"""The contract on an NVIDIA GPU by ONNX Runtime's CUDA provider, with caches in device memory.

With a plan in the bundle, every shape bucket is a CUDA graph. Other shapes, and all shapes without a plan, run without
graphs. Pipeline stages (cuda:0+cuda:1) keep their caches on the host and are implemented in
lopa.runtime.multi_device.pipeline_session.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from lopa.runtime.accelerator.device_session import DeviceSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket, bucket_plan_from_file, bucket_plan_path
from lopa.runtime.cuda.cuda_calls import CudaCalls, load_cuda
from lopa.runtime.cuda.cuda_forward import CudaForward
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.cuda_operators import CudaOperators, cuda_operators, loaded_library
from lopa.runtime.cuda.row_kernel import RowKernel
from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary
from lopa.runtime.device_families import parse_device
from lopa.runtime.sessions.cuda_libraries import load_cuda_libraries
from lopa.runtime.sessions.device_worker import ThreadedSession
from lopa.runtime.sessions.onnxruntime_graph import check_cuda_provider, check_types
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

_log = logging.getLogger(__name__)


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> ThreadedSession:  # noqa: ARG001
    """Open the bundle's graph on "cuda:N" or "cuda:N:tf32". `threads` applies to CPUs only.

    Raises BadInputError for another device, an unusable graph or an unusable plan. Raises MissingBackendError if ONNX
    Runtime's CUDA provider or cuda-bindings is missing. Raises CudaError (exit code 3) if the device does not respond.
    """
    number = parse_device(device, "cuda").number
    check_types(bundle, device)
    path = bucket_plan_path(bundle.path)
    buckets = bucket_plan_from_file(path, bundle).buckets if path.is_file() else []
    check_cuda_provider(device)
    load_cuda_libraries()
    return ThreadedSession(device, partial(_open_on_thread, load_cuda(), bundle, device, number, buckets))


def _open_on_thread(
    cuda: CudaCalls, bundle: Bundle, device: str, number: int, buckets: Sequence[ShapeBucket]
) -> DeviceSession:
    """Open the session on the thread that will use it."""
    with ExitStack() as stack:
        memory = CudaMemory(cuda, number)
        stack.callback(memory.close)
        shape = cache_shape_from_manifest(bundle.manifest)
        library = loaded_library(number)
        if isinstance(library, CudaLibrary):
            memory.use_row_kernel(RowKernel(library, shape))
        engine = CudaForward(bundle, device, memory, buckets, _operators(bundle, number, library))
        stack.callback(engine.close)
        session = DeviceSession(
            engine,
            device,
            shape,
            bundle.manifest.dimensions.vocab_size,
            engine.bucket_for,
            fixed_addresses=bool(buckets),
        )
        stack.pop_all()
    return session


def _operators(bundle: Bundle, number: int, library: CudaLibrary | str) -> CudaOperators | None:
    """Return the operators of the bundle's twin, or None if the plain graph runs."""
    found = cuda_operators(bundle, library)
    if isinstance(found, str):
        _log.info("cuda:%d runs %s without this project's operators: %s", number, bundle.graph.name, found)
        return None
    _log.info("cuda:%d runs %s, with this project's operators", number, found.graph.name)
    return found
