"""The contract on a GPU by ONNX Runtime's WebGPU plug-in.

Every node of a portable graph runs on the GPU, so its caches are in device memory. In a standard graph the Attention
nodes run on the processor, so its caches are in host memory. The twin of a graph with canvases has no such nodes.

The plug-in has one device per process for all its sessions. Calls from two threads at once end the process
(onnxruntime-ep-webgpu 0.4.0), so a session excludes all others of the process while it works.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import onnxruntime as ort

from lopa.runtime.accelerator.device_session import DeviceSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket, bucket_plan_from_file, bucket_plan_path
from lopa.runtime.bundle.webgpu_twin import webgpu_bundle, webgpu_graph, webgpu_initializers
from lopa.runtime.errors import BadInputError, raise_if_from_handler
from lopa.runtime.sessions.bound_forward import BoundForward
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.onnxruntime_graph import check_contract
from lopa.runtime.sessions.onnxruntime_session import OnnxPortableForward, OnnxRuntimeBinding
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.wrapped_session import WrappedSession
from lopa.runtime.webgpu.webgpu_forward import WebGpuForward
from lopa.runtime.webgpu.webgpu_library import Array, session_from_graph, webgpu_device
from lopa.runtime.webgpu.webgpu_memory import WebGpuMemory

T = TypeVar("T")

_GPU_LOCK = threading.Lock()


class LockedSession(WrappedSession):
    """Session whose calls hold the lock of the process."""

    def __init__(self, open_inner: Callable[[], Session]) -> None:
        """Open the inner session. Raises any exception of `open_inner`."""
        with _GPU_LOCK:
            super().__init__(open_inner())

    def _run(self, work: Callable[[Session], T]) -> T:
        with _GPU_LOCK:
            return work(self._inner)


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> LockedSession:  # noqa: ARG001
    """Open the bundle's portable graph on "webgpu:N", or its standard graph if it has canvases or no portable one.

    `threads` applies to CPUs only. Raises BadInputError for an unusable bundle, and MissingBackendError if the plug-in
    or the adapter is missing.
    """
    if bundle.manifest.dtype == "bfloat16":
        raise BadInputError(
            f"device {device!r} cannot run {bundle.path}, a bundle in bfloat16",
            expected="float32 or float16, because WebGPU has no bfloat16",
            remedy="export the checkpoint with --dtype float16 or float32",
        )
    has_canvas, quantization = bundle.manifest.dimensions.canvas is not None, bundle.manifest.quantization
    if quantization is not None and (quantization.kind == "fp8" or (has_canvas and quantization.kind == "int8")):
        raise BadInputError(
            f"device {device!r} cannot run {bundle.path}, a bundle with "
            f"{'canvases and int8' if has_canvas else 'FP8'} matrices",
            expected="int4, floating point, or int8 in a portable graph, because WebGPU has no FP8 and rounds no rows",
            remedy=f"export the checkpoint with {'' if has_canvas else '--dialect portable '}--quantize int4",
        )
    adapter = webgpu_device(device)
    if "portable" in bundle.dialects or has_canvas:
        return LockedSession(partial(session_with_device_caches, webgpu_bundle(bundle), device, adapter))
    return LockedSession(partial(session_with_host_caches, bundle, device, adapter))


def session_with_device_caches(bundle: Bundle, device: str, adapter: Any) -> DeviceSession:
    """Open a bundle with a portable graph or canvases, with caches in device memory."""
    path = bucket_plan_path(bundle.path)
    buckets: Sequence[ShapeBucket] = bucket_plan_from_file(path, bundle).buckets if path.is_file() else []
    shape, sizes = cache_shape_from_manifest(bundle.manifest), bundle.manifest.dimensions
    with ExitStack() as stack:
        memory = WebGpuMemory(adapter)
        stack.callback(memory.close)
        forward = WebGpuForward(bundle, _opened(bundle, adapter), memory, buckets, adapter)
        stack.callback(forward.close)
        fit = forward.bucket_for
        session = DeviceSession(forward, device, shape, sizes.vocab_size, fit, hidden_size=sizes.hidden_size)
        stack.pop_all()
    return session


def session_with_host_caches(bundle: Bundle, device: str, adapter: Any) -> HostSession:
    """Open a bundle in either dialect, with caches in host memory."""
    graph, manifest = _opened(bundle, adapter), bundle.manifest
    forward: Forward
    if manifest.dialect == "portable":
        forward = OnnxPortableForward(graph, manifest.rotary)
    else:
        forward = BoundForward(OnnxRuntimeBinding(graph), manifest, manifest.dimensions.whole_model)
    return HostSession(forward, device, cache_shape_from_manifest(manifest))


def _opened(bundle: Bundle, adapter: Any) -> ort.InferenceSession:
    """Open and check the bundle's graph, or its twin."""
    graph, matrices = bundle.graph, dict[str, Array]()
    if bundle.manifest.dialect == "portable" or bundle.manifest.dimensions.canvas is not None:
        graph, matrices = webgpu_graph(bundle), webgpu_initializers(bundle)
    try:
        session = session_from_graph(graph, adapter, matrices)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise_if_from_handler(error)
        raise BadInputError(
            f"ONNX Runtime {ort.__version__} cannot open {graph} on WebGPU: {error}",
            expected="a graph made by this version of lopa-export, whose tensors fit the adapter's buffers",
            remedy="check the bundle with lopa-export verify, or use another device",
        ) from error
    check_contract(bundle, graph, session, bundle.manifest.dimensions.whole_model)
    return session
