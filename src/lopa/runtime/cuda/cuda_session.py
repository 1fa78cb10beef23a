"""The contract on an NVIDIA GPU by ONNX Runtime's CUDA provider, with caches in device memory.

With this project's operators it runs the twin over packed rows, otherwise the plain graph over padded windows. Pipeline
stages (cuda:0+cuda:1) keep their caches on the host and are implemented in lopa.runtime.multi_device.pipeline_session.
"""

import logging
from contextlib import ExitStack
from functools import partial

from lopa.runtime.accelerator.device_session import DeviceSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.cuda.cuda_calls import CudaCalls, load_cuda
from lopa.runtime.cuda.cuda_forward import CudaForward
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.cuda_operators import cuda_operators, loaded_library
from lopa.runtime.cuda.driver import CudaDevice, cuda_device, without_fp8
from lopa.runtime.cuda.packed_forward import PackedForward
from lopa.runtime.cuda.packed_session import PackedSession
from lopa.runtime.device_families import parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions import onnxruntime_session
from lopa.runtime.sessions.bound_forward import BoundForward
from lopa.runtime.sessions.cuda_libraries import load_cuda_libraries
from lopa.runtime.sessions.device_worker import DeviceWorker, ThreadedSession
from lopa.runtime.sessions.onnxruntime_graph import check_cuda_provider, check_types
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import Session

_log = logging.getLogger(__name__)


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> Session:  # noqa: ARG001
    """Open the bundle's graph or its twin on "cuda:N" or "cuda:N:tf32". `threads` applies to CPUs only.

    Raises BadInputError for another device, an unusable graph, and FP8 matrices that neither the GPU nor this project's
    operators multiply. Raises MissingBackendError if ONNX Runtime's CUDA provider or cuda-bindings is missing. Raises
    CudaError (exit code 3) if the device does not respond.
    """
    number = parse_device(device, "cuda").number
    check_types(bundle, device)
    check_cuda_provider(device)
    load_cuda_libraries()
    worker = DeviceWorker(f"lopa {device}")
    try:
        opened = worker.submit(partial(_open_on_thread, load_cuda(), bundle, device, number)).result()
    except BaseException:
        worker.stop()
        raise
    if isinstance(opened, PackedForward):
        return PackedSession(bundle, device, opened, worker)
    return ThreadedSession(device, lambda: opened, worker)


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
    """Open the plain graph of a pipeline stage on "cuda:N". Raises like open_session."""
    if bundle.manifest.is_fp8:
        _check_fp8(bundle, device, cuda_device(parse_device(device, "cuda").number), "pipeline stages have none")
    return onnxruntime_session.forward_from_bundle(bundle, part, device, threads=threads)


def _check_fp8(bundle: Bundle, device: str, found: CudaDevice, reason: str) -> None:
    """Raise BadInputError if the plain graph, which runs for `reason`, needs FP8 products that the GPU lacks."""
    if without_fp8([found.capability]):
        raise BadInputError(
            f"device {device!r}, {found.name} of compute capability {found.capability}, cannot run {bundle.path}, a "
            f"bundle with FP8 matrices, without this project's operators: {reason}",
            expected="compute capability 8.9 or newer, or 8.0 or newer with the operators",
            remedy="make the operators run, on one GPU, or export the checkpoint with --quantize int8 or int4",
        )


def _open_on_thread(cuda: CudaCalls, bundle: Bundle, device: str, number: int) -> PackedForward | DeviceSession:
    """Open the twin's forward, or a session over the plain graph, on the thread that will use it."""
    with ExitStack() as stack:
        memory = CudaMemory(cuda, number)
        stack.callback(memory.close)
        operators, shape = cuda_operators(bundle, loaded_library(number)), cache_shape_from_manifest(bundle.manifest)
        opened: PackedForward | DeviceSession
        if isinstance(operators, str):
            if bundle.manifest.is_fp8:
                _check_fp8(bundle, device, cuda_device(number), operators)
            _log.info("cuda:%d runs %s without this project's operators: %s", number, bundle.graph.name, operators)
            engine = CudaForward(bundle, device, memory)
            sizes, fit = bundle.manifest.dimensions, engine.bucket_for
            opened = DeviceSession(engine, device, shape, sizes.vocab_size, fit, hidden_size=sizes.hidden_size)
        else:
            _log.info("cuda:%d runs %s, with this project's operators", number, operators.graph.name)
            opened = PackedForward(bundle, device, memory, operators, shape)
        stack.pop_all()
    return opened
