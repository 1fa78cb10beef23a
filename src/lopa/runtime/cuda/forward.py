"""One forward by ONNX Runtime's CUDA provider, from device memory to device memory: the DeviceForward protocol.

Every bucket becomes a CUDA graph at its first forward and is replayed from then on; other shapes run node by node. Knows
no request. ONNX Runtime keeps graphs by thread, so one thread makes, uses and closes an engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import onnxruntime as ort

from lopa.runtime.accelerator.arrays import GraphArrays
from lopa.runtime.accelerator.graph_form import ContractForm, GraphForm, PortableForm
from lopa.runtime.accelerator.memory import Buffer
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket, bucket_from_sizes
from lopa.runtime.bundle.graph_signature import ArrayForm
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.cuda.calls import CAPTURES
from lopa.runtime.cuda.memory import CudaMemory
from lopa.runtime.errors import BadInputError, EngineFailedError, MissingBackendError
from lopa.runtime.sessions.cuda_libraries import cuda_remedy
from lopa.runtime.sessions.onnxruntime_graph import check_contract, quiet_run

PROVIDER = "CUDAExecutionProvider"
_ERRORS_ONLY = 3
_NO_GRAPH = -1
"""ONNX Runtime's gpu_graph_id of a run that is neither captured nor replayed. 0 is reserved."""
_WINDOW_STEP = 4
"""ONNX Runtime's fused attention with a mask takes no other lengths (prefixes are multiples of 64)."""
_NOTHING = Sizes(0, 0, 0, 0, 0)
"""Without buckets nothing has to be there before the first forward."""
_BFLOAT16_IN_ONNX = 16
"""TensorProto.BFLOAT16"""


class CudaForward:
    """The AnyShapeForward protocol."""

    def __init__(self, bundle: Bundle, memory: CudaMemory, buckets: Sequence[ShapeBucket]) -> None:
        """Open the bundle's graph for the device and the stream of `memory`; without buckets there are no CUDA graphs.

        Raises MissingBackendError when the provider does not start, BadInputError when the graph cannot be opened.
        """
        self.memory = memory
        self.buckets = buckets
        self.form: GraphForm = PortableForm() if bundle.manifest.dialect == "portable" else ContractForm()
        self._arrays = GraphArrays(bundle.manifest)
        self._table = BucketTable(buckets) if buckets else None
        self.sizes = self._arrays.bytes_but_prefix(_NOTHING, *buckets)
        self._session: Any = _session_of_bundle(bundle, memory, with_graphs=bool(buckets))
        self._graphs: dict[tuple[ShapeBucket, tuple[int, ...]], tuple[Any, Any]] = {}
        """Binding and options of each captured run. A graph uses the addresses that it was captured with."""
        self._other = self._session.io_binding()
        self._other_key: object = None
        """What is bound there."""
        self._other_options = _run_options(_NO_GRAPH if buckets else None)

    def sizes_of(self, bucket: ShapeBucket) -> dict[str, int]:
        """AnyShapeForward.sizes_of."""
        return self._arrays.bytes_but_prefix(bucket)

    def bucket_for(self, sizes: Sizes) -> ShapeBucket:
        """The bucket that serves a forward best, or nearly its own shape where none has room for it."""
        if self._table is not None and self._table.holds(sizes):
            return self._table.bucket_for(sizes)
        window = -(-sizes.window // _WINDOW_STEP) * _WINDOW_STEP
        return bucket_from_sizes(msgspec.structs.replace(sizes, window=window), seconds=0.0)

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """DeviceForward.enqueue. Raises EngineFailedError when ONNX Runtime cannot run it."""
        key = (bucket, tuple(buffer.address for buffer in buffers.values()))
        if bucket not in self.buckets:
            if key != self._other_key:
                self._other_key = None
                self._bind(self._other, bucket, buffers)
                self._other_key = key
            with CAPTURES.forbidden():
                self._run(self._other, self._other_options)
            return
        if key in self._graphs:
            with CAPTURES.forbidden():
                self._run(*self._graphs[key])
            return
        binding, options = self._session.io_binding(), _run_options(len(self._graphs) + 1)
        self._bind(binding, bucket, buffers)
        with CAPTURES.alone():
            self._run(binding, options)  # twice as it is, then captured, then replayed: all within this call
        self._graphs[key] = binding, options

    def close(self) -> None:
        """DeviceForward.close."""
        self._graphs.clear()
        self._other = self._session = None

    def _bind(self, binding: Any, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        device = self.memory.device
        for name, array in self._arrays.inputs(bucket).items():
            binding.bind_input(name, "cuda", device, _type_of(array), array.shape, buffers[name].address)
        for name, array in self._arrays.outputs(bucket).items():
            binding.bind_output(name, "cuda", device, _type_of(array), array.shape, buffers[name].address)

    def _run(self, binding: Any, options: Any) -> None:
        try:
            self._session.run_with_iobinding(binding, options)
        except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
            raise EngineFailedError(
                f"ONNX Runtime on cuda:{self.memory.device}: {error}",
                expected="a forward that runs",
                remedy="if the memory is full, decode fewer requests at a time or plan smaller buckets; check nvidia-smi",
            ) from error


def _type_of(array: ArrayForm) -> Any:
    """The type as an IOBinding takes it: numpy's, or a number of ONNX."""
    return _BFLOAT16_IN_ONNX if array.dtype == stored_dtype("bfloat16") else array.dtype.type


def _run_options(graph: int | None) -> ort.RunOptions:
    options = quiet_run()
    # Statistics are waited for when they are downloaded, on the same stream.
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    if graph is not None:
        options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def _session_of_bundle(bundle: Bundle, memory: CudaMemory, *, with_graphs: bool) -> Any:
    cuda = {
        "device_id": str(memory.device),
        "user_compute_stream": str(memory.stream),
        "do_copy_in_default_stream": "1",
        "enable_cuda_graph": "1" if with_graphs else "0",
    }
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    try:
        with CAPTURES.forbidden():
            session = ort.InferenceSession(
                str(bundle.graph), options, providers=[(PROVIDER, cuda), ("CPUExecutionProvider", {})]
            )
    except Exception as error:
        graphs = ", or move shape_buckets.json away to run without CUDA graphs" if with_graphs else ""
        raise BadInputError(
            f"ONNX Runtime {ort.__version__} cannot open {bundle.graph} on cuda:{memory.device}: {error}",
            expected="a graph made by this version of lopa-export, all of it for the CUDA provider",
            remedy=f"check it with lopa-export verify, export the checkpoint again{graphs}",
        ) from error
    if session.get_providers()[0] != PROVIDER:
        raise MissingBackendError(
            f"cuda:{memory.device}: the CUDA provider did not start, ONNX Runtime fell back to "
            f"{session.get_providers()}",
            expected="the CUDA 13 and cuDNN 9 libraries on the loader path",
            remedy=cuda_remedy(),
        )
    check_contract(bundle, bundle.graph, session, whole_model(bundle.manifest.dimensions.layers))
    return session
