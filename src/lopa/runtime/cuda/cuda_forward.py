"""One forward by ONNX Runtime's CUDA provider from device memory to device memory (DeviceForward protocol).

The first forward in a shape bucket is captured as a CUDA graph and replayed afterwards. Other shapes run node by node.
ONNX Runtime keeps graphs per thread, so one thread must create, use and close an engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import onnxruntime as ort

from lopa.runtime.accelerator.device_forward import AnyShapes
from lopa.runtime.accelerator.device_memory import Buffer
from lopa.runtime.accelerator.graph_form import ContractForm, GraphForm, PortableForm
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME, ShapeBucket
from lopa.runtime.bundle.graph_signature import ArrayForm
from lopa.runtime.contract import stored_dtype
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.cuda_operators import CudaOperators, TaskForm
from lopa.runtime.cuda.fused_weights import fused_weights
from lopa.runtime.errors import BadInputError, EngineFailedError, MissingBackendError, raise_if_from_handler
from lopa.runtime.sessions.cuda_libraries import cuda_remedy
from lopa.runtime.sessions.onnxruntime_graph import check_contract, quiet_run
from lopa.runtime.sessions.providers import ERRORS_ONLY, PROVIDER, cuda_providers, session_on_providers

_NO_GRAPH = -1
"""Value of ONNX Runtime's gpu_graph_id for a run without a graph. 0 is reserved."""
_WINDOW_STEP = 4
"""Granularity of window lengths that ONNX Runtime's fused masked attention supports. Prefixes are multiples of 64."""
_BFLOAT16_IN_ONNX = 16
"""Value of TensorProto.BFLOAT16."""


class CudaForward(AnyShapes):
    """Forward on ONNX Runtime's CUDA provider, for shape buckets and any other shape."""

    def __init__(
        self,
        bundle: Bundle,
        device: str,
        memory: CudaMemory,
        buckets: Sequence[ShapeBucket],
        operators: CudaOperators | None = None,
    ) -> None:
        """Open the bundle's graph, or its twin with `operators`, on "cuda:N" or "cuda:N:tf32", whose memory and stream
        `memory` has. Without `buckets` there are no CUDA graphs.

        Raises MissingBackendError if the provider does not start, and BadInputError if the graph cannot be opened.
        """
        super().__init__(bundle.manifest, buckets, _WINDOW_STEP)
        self.memory = memory
        self.form: GraphForm = _form_of_graph(bundle, operators)
        self._session: Any = _session_of_bundle(bundle, device, memory, operators, with_graphs=bool(buckets))
        self._weights = {} if operators is None else fused_weights(bundle, operators.twin, memory)
        self._graphs: dict[tuple[ShapeBucket, tuple[int, ...]], tuple[Any, Any]] = {}
        """Binding and options of each captured run. A graph uses the addresses of its capture."""
        self._other = self._session.io_binding()
        self._other_key: object = None
        """Shape and addresses currently bound in `_other`."""
        self._other_options = _run_options(_NO_GRAPH if buckets else None)

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """Enqueue a forward. Raises EngineFailedError if ONNX Runtime cannot run it."""
        key = (bucket, tuple(buffer.address for buffer in buffers.values()))
        if bucket not in self.buckets:
            if key != self._other_key:
                self._other_key = None
                self._bind(self._other, bucket, buffers)
                self._other_key = key
            with CAPTURE_LOCK.shared():
                self._run(self._other, self._other_options)
            return
        if key in self._graphs:
            with CAPTURE_LOCK.shared():
                self._run(*self._graphs[key])
            return
        binding, options = self._session.io_binding(), _run_options(len(self._graphs) + 1)
        self._bind(binding, bucket, buffers)
        with CAPTURE_LOCK.exclusive():
            self._run(
                binding, options
            )  # ONNX Runtime runs it twice, then captures and replays it, all within this call
        self._graphs[key] = binding, options

    def close(self) -> None:
        """Free the graphs and the session."""
        self._graphs.clear()
        self._other = self._session = None

    def _bind(self, binding: Any, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        device = self.memory.device
        for name, array in self.arrays.inputs(bucket).items():
            binding.bind_input(name, "cuda", device, _type_of(array), array.shape, buffers[name].address)
        for name, fused in self._weights.items():
            binding.bind_input(name, "cuda", device, _type_of(fused.form), fused.form.shape, fused.address)
        for name, array in self.arrays.outputs(bucket).items():
            binding.bind_output(name, "cuda", device, _type_of(array), array.shape, buffers[name].address)

    def _run(self, binding: Any, options: Any) -> None:
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise_if_from_handler(error)
            raise EngineFailedError(
                f"ONNX Runtime on cuda:{self.memory.device}: {error}",
                expected="a successful forward",
                remedy="check nvidia-smi; if memory is full, decode fewer requests at once or plan smaller buckets",
            ) from error


def _type_of(array: ArrayForm) -> Any:
    """Return the element type as IOBinding takes it: a numpy type, or an ONNX type number."""
    return _BFLOAT16_IN_ONNX if array.dtype == stored_dtype("bfloat16") else array.dtype.type


def _run_options(graph: int | None) -> ort.RunOptions:
    options = quiet_run()
    # Downloads of the statistics wait on the same stream.
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    if graph is not None:
        options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def _form_of_graph(bundle: Bundle, operators: CudaOperators | None) -> GraphForm:
    manifest = bundle.manifest
    if operators is not None:
        return TaskForm(manifest.dimensions, manifest.rotary)
    return (PortableForm if manifest.dialect == "portable" else ContractForm)(manifest.rotary)


def _session_of_bundle(
    bundle: Bundle, device: str, memory: CudaMemory, operators: CudaOperators | None, *, with_graphs: bool
) -> Any:
    graph = bundle.graph if operators is None else operators.graph
    providers = cuda_providers(
        device,
        user_compute_stream=str(memory.stream),
        do_copy_in_default_stream="1",
        enable_cuda_graph="1" if with_graphs else "0",
    )
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    if operators is not None:
        operators.library.add_operators(options)
    try:
        with CAPTURE_LOCK.shared():
            session = session_on_providers(graph, options, providers)
    except Exception as error:
        raise_if_from_handler(error)
        graphs = f", or remove {BUCKETS_NAME} to run without CUDA graphs" if with_graphs else ""
        raise BadInputError(
            f"ONNX Runtime {ort.__version__} cannot open {graph} on cuda:{memory.device}: {error}",
            expected="a graph made by this version of lopa-export that runs on the CUDA provider",
            remedy=f"check the bundle with lopa-export verify, export the checkpoint again{graphs}",
        ) from error
    if session.get_providers()[0] != PROVIDER:
        raise MissingBackendError(
            f"cuda:{memory.device}: the CUDA provider did not start; ONNX Runtime fell back to "
            f"{session.get_providers()}",
            expected="the CUDA 13 and cuDNN 9 libraries on the loader path",
            remedy=cuda_remedy(),
        )
    twin = None if operators is None else operators.twin
    check_contract(bundle, graph, session, whole_model(bundle.manifest.dimensions.layers), twin)
    return session
