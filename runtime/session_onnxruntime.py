"""The contract on ONNX Runtime: the CPU, or a CUDA device with caches and windows bound from host memory.

Knows how inputs and outputs are bound without copies. Does not know which requests live, nor what a window means.
"""

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from lopa.runtime import contract
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Floats, Statistics, WindowBatch
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.host_session import HostSession
from lopa.runtime.manifest import Manifest
from lopa.runtime.prefix_cache import Prefix, cache_shape_from_manifest

Array = npt.NDArray[Any]

_ERRORS_ONLY = 3
_CUDA = "CUDAExecutionProvider"


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> HostSession:
    """Open the bundle's graph on "cpu" or "cuda:N"; `threads` None leaves their number to ONNX Runtime.

    Raises BadInputError for another device or a graph that cannot be used, MissingBackendError when ONNX Runtime here
    has no CUDA provider or it does not start.
    """
    providers = _providers_from_device(device)
    session = _inference_session(bundle, providers, threads)
    if session.get_providers()[0] != providers[0][0]:
        raise MissingBackendError(
            f"device {device!r}: the CUDA provider did not start, ONNX Runtime fell back to {session.get_providers()}",
            expected="a CUDA device of this number, and the CUDA 13 and cuDNN 9 libraries on the loader path",
            remedy="check nvidia-smi and the CUDA libraries, or use --device cpu",
        )
    _check_contract(bundle, session)
    return HostSession(OnnxRuntimeEngine(session, bundle.manifest), device, cache_shape_from_manifest(bundle.manifest))


class OnnxRuntimeEngine:
    """One forward through ONNX Runtime with every input and output bound to memory that is used again."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._sizes = manifest.dimensions
        self._cache_type = np.dtype(manifest.dtype)
        self._with_logits = manifest.with_logits
        self._memory: dict[str, _ReusedMemory] = {}
        self._arrays: dict[str, Array] = {}
        """Bound now, by name: the small inputs and all outputs, of the sizes in `_bound_window`."""
        self._bound_window: tuple[int, int, int, int] | None = None
        self._bound_prefix: Prefix | None = None

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Floats, ...]]:
        """Engine.run: one call for all branches of all requests. The rows are overwritten by the next run."""
        window = (*batch.input_ids.shape, batch.logits_index.shape[-1])
        if window != self._bound_window:
            self._bind_window(*window)
        if prefix is not self._bound_prefix:
            self._bind_prefix(prefix)
        arrays = self._arrays
        arrays[contract.INPUT_IDS][...] = batch.input_ids
        arrays[contract.POSITION_IDS][...] = batch.position_ids
        arrays[contract.WINDOW_MASK][...] = batch.window_mask
        arrays[contract.LOGITS_INDEX][...] = batch.logits_index
        arrays[contract.TEMPERATURE][...] = batch.temperature
        self._session.run_with_iobinding(self._binding)
        statistics = Statistics(
            topk_ids=arrays[contract.TOPK_IDS].copy(),
            topk_logprobs=arrays[contract.TOPK_LOGPROBS].copy(),
            entropy=arrays[contract.ENTROPY].copy(),
            logits=arrays[contract.LOGITS].copy() if self._with_logits else None,
        )
        return statistics, tuple(arrays[name] for name in contract.window_names(self._sizes.layers))

    def forget_prefix(self) -> None:
        """Unbind all inputs, so that a released cache is freed."""
        self._binding.clear_binding_inputs()
        self._bound_window = None
        self._bound_prefix = None

    def close(self) -> None:
        """Free the graph, the bindings and their memory."""
        del self._binding, self._session
        self._memory.clear()
        self._arrays.clear()
        self._bound_prefix = None

    def _bind_window(self, requests: int, branches: int, width: int, queries: int) -> None:
        """Bind everything but the prefix to memory of these sizes: W is `width`, Q is `queries`."""
        self._bound_window = None  # until all are bound
        rows = (requests, branches, width)
        wanted = (requests, branches, queries)
        inputs: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            contract.INPUT_IDS: (rows, np.int64),
            contract.POSITION_IDS: (rows, np.int64),
            contract.WINDOW_MASK: ((*rows, width), np.bool_),
            contract.LOGITS_INDEX: (wanted, np.int64),
            contract.TEMPERATURE: ((requests,), np.float32),
        }
        outputs: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            contract.TOPK_IDS: ((*wanted, contract.TOP_K), np.int64),
            contract.TOPK_LOGPROBS: ((*wanted, contract.TOP_K), np.float32),
            contract.ENTROPY: (wanted, np.float32),
        }
        new_rows = (requests, branches, self._sizes.kv_heads, width, self._sizes.head_size)
        for name in contract.window_names(self._sizes.layers):
            outputs[name] = (new_rows, self._cache_type)
        if self._with_logits:
            outputs[contract.LOGITS] = ((*wanted, self._sizes.vocab_size), np.float32)
        for name, (shape, dtype) in inputs.items():
            self._binding.bind_ortvalue_input(name, self._bindable(name, shape, dtype))
        for name, (shape, dtype) in outputs.items():
            self._binding.bind_ortvalue_output(name, self._bindable(name, shape, dtype))
        self._bound_window = (requests, branches, width, queries)

    def _bindable(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> ort.OrtValue:
        memory = self._memory.setdefault(name, _ReusedMemory(np.dtype(dtype)))
        self._arrays[name] = memory.view(shape)
        return ort.OrtValue.ortvalue_from_numpy(self._arrays[name])

    def _bind_prefix(self, prefix: Prefix) -> None:
        names = [contract.PREFIX_MASK, *contract.past_names(self._sizes.layers)]
        for name, array in zip(names, (prefix.mask, *prefix.arrays), strict=True):
            self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        self._bound_prefix = prefix


class _ReusedMemory:
    """Memory of one input or output: as large as the largest shape so far, so that changing shapes allocate nothing."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._flat: Array = np.empty(0, dtype)

    def view(self, shape: tuple[int, ...]) -> Array:
        """A C-contiguous array of this shape over the memory; earlier views of the same memory lose their contents."""
        size = math.prod(shape)
        if size > self._flat.size:
            self._flat = np.empty(size, self._flat.dtype)
        return self._flat[:size].reshape(shape)


def _providers_from_device(device: str) -> list[tuple[str, dict[str, Any]]]:
    """Execution providers, first choice first. Raises as `open_session` does."""
    cpu: tuple[str, dict[str, Any]] = ("CPUExecutionProvider", {})
    if device == "cpu":
        return [cpu]
    found = re.fullmatch(r"cuda:(\d{1,4})", device, re.ASCII)
    if found is None:
        raise BadInputError(
            f"device {device!r}", expected="cpu, or cuda:N with N the number of the device", remedy="e.g. cpu or cuda:0"
        )
    available = ort.get_available_providers()
    if _CUDA not in available:
        raise MissingBackendError(
            f"device {device!r}, but ONNX Runtime here has only {', '.join(available)}",
            expected=f"an ONNX Runtime with {_CUDA}",
            remedy="pip uninstall onnxruntime, then pip install onnxruntime-gpu (CUDA 13 and cuDNN 9), or use cpu",
        )
    return [(_CUDA, {"device_id": found[1]}), cpu]


def _inference_session(
    bundle: Bundle, providers: list[tuple[str, dict[str, Any]]], threads: int | None
) -> ort.InferenceSession:
    """Open the graph from its file, so that external data beside it is found and mapped."""
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return ort.InferenceSession(str(bundle.graph), options, providers=providers)
    except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
        raise BadInputError(
            f"ONNX Runtime {ort.__version__} cannot open {bundle.graph}: {error}",
            expected="a graph made by this version of lopa-export",
            remedy="check it with lopa-export verify, or export the checkpoint again",
        ) from error


def _check_contract(bundle: Bundle, session: ort.InferenceSession) -> None:
    """Raise BadInputError unless the graph has exactly the inputs and outputs of the contract."""
    layers = bundle.manifest.dimensions.layers
    for what, found, expected in (
        ("inputs", session.get_inputs(), contract.input_names(layers)),
        ("outputs", session.get_outputs(), contract.output_names(layers, with_logits=bundle.manifest.with_logits)),
    ):
        names = {value.name for value in found}
        if names != set(expected):
            raise BadInputError(
                f"{bundle.graph} has other {what} than its manifest says: {sorted(names ^ set(expected))}",
                expected=f"the {what} of contract version {contract.CONTRACT_VERSION}",
                remedy="export the checkpoint again",
            )
