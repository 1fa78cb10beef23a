"""The contract on ONNX Runtime, with caches and windows bound from host memory: the CPU, and stages on CUDA devices.

Knows how inputs and outputs are bound without copies, and that all sessions of a process on one bundle, device and
number of threads share one graph. Does not know which requests live, nor what a window means.
"""

import math
import os
import re
import threading
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from lopa.runtime import contract
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import (
    arrays_of_values,
    difference_of_values,
    inputs_of_graph,
    outputs_of_graph,
)
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Rows, Sizes, Statistics, WindowBatch
from lopa.runtime.contract.model_part import HIDDEN, ModelPart, whole_model
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.install_hint import pip_command, pip_install
from lopa.runtime.sessions.cpu_cores import check_cpu_device, cores_from_device
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.portable_forward import PortableForward, quiet_run
from lopa.runtime.sessions.prefix_cache import Prefix, cache_shape_from_manifest

Array = npt.NDArray[Any]

_ERRORS_ONLY = 3
_SHOWN = 3
"""Names in an error."""
_MOST_BUFFERS = 64
"""Sets of views kept: creating one costs more than binding it, and a decode comes back to few sizes."""
_CUDA = "CUDAExecutionProvider"
_BFLOAT16_BITS = stored_dtype("bfloat16")
_BFLOAT16_IN_ONNX = 16
"""TensorProto.BFLOAT16"""
_open_graphs: weakref.WeakValueDictionary["_GraphKey", ort.InferenceSession] = weakref.WeakValueDictionary()
"""Graphs in use. A graph holds its weights once more, packed for the processor; it is freed with its last session."""
_opening = threading.Lock()


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> HostSession:
    """Open the bundle's graph on "cpu" or cores ("cpu:0-3"); `threads` None leaves their number to ONNX Runtime, or is
    one for each core named.

    ONNX Runtime's own threads stay on the cores; the thread that calls counts as one of them, and is the caller's to
    keep there (lopa.runtime.parallel.session_thread does).

    Raises BadInputError for another device, a bfloat16 bundle or a graph that cannot be used.
    """
    manifest = bundle.manifest
    part = whole_model(manifest.dimensions.layers)
    forward: Forward
    if manifest.dialect == "portable":
        forward = PortableForward(_inference_session_of_part(bundle, part, device, threads))
    else:
        forward = forward_from_bundle(bundle, part, device, threads=threads)
    return HostSession(forward, device, cache_shape_from_manifest(manifest))


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> "OnnxRuntimeForward":
    """Open the graph of `bundle`, which is the standard one of `part`, on a device for `open_session` or "cuda:N".

    Raises as that, and MissingBackendError when ONNX Runtime here has no CUDA provider or it does not start.
    """
    return OnnxRuntimeForward(_inference_session_of_part(bundle, part, device, threads), bundle.manifest, part)


def _inference_session_of_part(
    bundle: Bundle, part: ModelPart, device: str, threads: int | None
) -> ort.InferenceSession:
    """ONNX Runtime's session on the graph of `bundle`, checked; errors as for `forward_from_bundle`."""
    providers = _providers_from_device(device)
    check_types(bundle, device)
    session = _shared_inference_session(bundle, providers, _threading_from_device(device, threads))
    if session.get_providers()[0] != providers[0][0]:
        raise MissingBackendError(
            f"device {device!r}: the CUDA provider did not start, ONNX Runtime fell back to {session.get_providers()}",
            expected="a CUDA device of this number, and the CUDA 13 and cuDNN 9 libraries on the loader path",
            remedy="check nvidia-smi and the CUDA libraries, or use --device cpu",
        )
    check_contract(bundle, session, part)
    return session


def check_types(bundle: Bundle, device: str) -> None:
    """Raise BadInputError for a bundle in bfloat16 that ONNX Runtime cannot run on `device`."""
    cpu = device.split(":", 1)[0] == "cpu"
    if cpu and bundle.manifest.dtype == "bfloat16":
        raise BadInputError(
            f"device {device!r} for {bundle.path}, a bundle in bfloat16",
            expected="a bundle in float32 or float16: ONNX Runtime has no bfloat16 operators for the CPU",
            remedy="export the checkpoint with --dtype fp32 or fp16, or use --device cuda:N (or numpy, which is slow)",
        )
    if bundle.manifest.dialect == "portable" and bundle.manifest.dtype == "bfloat16":
        raise BadInputError(
            f"device {device!r} for {bundle.path}, a portable graph in bfloat16",
            expected="a graph in the standard dialect, or in float32 or float16",
            remedy="export the checkpoint with --dialect both, or use the device that the portable graph was made for",
        )


class OnnxRuntimeForward:
    """One forward through ONNX Runtime with every input and output bound to memory that is used again."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest, part: ModelPart) -> None:
        self._session = session
        self._part = part
        self._binding = session.io_binding()
        self._run_options = quiet_run()
        prefix = {contract.PREFIX_MASK, *part.past_names}
        self._inputs = {name: form for name, form in inputs_of_graph(manifest, part).items() if name not in prefix}
        self._outputs = outputs_of_graph(manifest, part)
        self._memory: dict[str, Array] = {}
        """One flat array for each input and output but the prefix, as large as the largest window so far needed it."""
        self._buffers: dict[Sizes, _Buffers] = {}
        """Views of `_memory` for the sizes seen since it last grew; only those of the last run hold its results."""
        self._bound_window: Sizes | None = None
        self._bound_prefix: Prefix | None = None

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Forward.run: one call for all branches of all requests. The rows are overwritten by the next run."""
        arrays = self.run_part(batch, None, prefix)
        return self.statistics_from_outputs(arrays), tuple(arrays[name] for name in self._part.window_names)

    def run_part(self, batch: WindowBatch, hidden: Array | None, prefix: Prefix) -> dict[str, Array]:
        """All outputs by name, in memory that the next run overwrites.

        `prefix` has the arrays of this part's layers; `hidden` as HIDDEN for any but the first.
        """
        requests, branches, window = batch.input_ids.shape
        # The prefix is bound by itself, and rows are wanted of the last part alone.
        wanted = batch.logits_index.shape[2] if self._part.is_last else 0
        arrays = self._bound_arrays(Sizes(requests, branches, window, prefix=0, wanted=wanted))
        if prefix is not self._bound_prefix:
            self._bind_prefix(prefix)
        if hidden is None:
            arrays[contract.INPUT_IDS][...] = batch.input_ids
        else:
            arrays[HIDDEN][...] = hidden
        arrays[contract.POSITION_IDS][...] = batch.position_ids
        arrays[contract.WINDOW_MASK][...] = batch.window_mask
        if self._part.is_last:
            arrays[contract.LOGITS_INDEX][...] = batch.logits_index
            arrays[contract.TEMPERATURE][...] = batch.temperature
        self._session.run_with_iobinding(self._binding, self._run_options)
        return arrays

    def statistics_from_outputs(self, arrays: dict[str, Array]) -> Statistics:
        """Copies of the statistics among what `run_part` of a last part gave."""
        return Statistics(
            topk_ids=arrays[contract.TOPK_IDS].copy(),
            topk_logprobs=arrays[contract.TOPK_LOGPROBS].copy(),
            entropy=arrays[contract.ENTROPY].copy(),
            logits=arrays[contract.LOGITS].copy() if contract.LOGITS in self._outputs else None,
        )

    def forget_prefix(self) -> None:
        """Unbind all inputs, so that a released cache is freed."""
        self._binding.clear_binding_inputs()
        self._bound_window = None
        self._bound_prefix = None

    def close(self) -> None:
        """Free the graph, the bindings and their memory."""
        del self._binding, self._session
        self._memory.clear()
        self._buffers.clear()
        self._bound_prefix = None

    def _bound_arrays(self, sizes: Sizes) -> dict[str, Array]:
        """The bound arrays of these sizes, by the names of the contract: all inputs and outputs but the prefix."""
        if sizes not in self._buffers:
            self._add_buffers(sizes)
        buffers = self._buffers[sizes]
        if sizes != self._bound_window:
            self._bound_window = None  # until all are bound
            for name, value in buffers.inputs:
                self._binding.bind_ortvalue_input(name, value)
            for name, value in buffers.outputs:
                self._binding.bind_ortvalue_output(name, value)
            self._bound_window = sizes
        return buffers.arrays

    def _add_buffers(self, sizes: Sizes) -> None:
        self._bound_window = None  # its views may go
        inputs, outputs = arrays_of_values(self._inputs, sizes), arrays_of_values(self._outputs, sizes)
        both = inputs | outputs
        if len(self._buffers) == _MOST_BUFFERS:
            self._buffers.clear()
        for name, form in both.items():
            size = math.prod(form.shape)
            if name not in self._memory or self._memory[name].size < size:
                self._memory[name] = np.empty(size, form.dtype)
                self._buffers.clear()  # views of the smaller memory would keep it
        arrays = {name: self._memory[name][: math.prod(form.shape)].reshape(form.shape) for name, form in both.items()}
        values = {name: _value_of(array) for name, array in arrays.items()}
        self._buffers[sizes] = _Buffers(
            arrays, [(name, values[name]) for name in inputs], [(name, values[name]) for name in outputs]
        )

    def _bind_prefix(self, prefix: Prefix) -> None:
        names = [contract.PREFIX_MASK, *self._part.past_names]
        for name, array in zip(names, (prefix.mask, *prefix.arrays), strict=True):
            self._binding.bind_ortvalue_input(name, _value_of(array))
        self._bound_prefix = prefix


@dataclass(frozen=True, eq=False)
class _Buffers:
    """Everything bound for one window but the prefix: the arrays, and the forward's handles of the same memory."""

    arrays: dict[str, Array]
    inputs: list[tuple[str, ort.OrtValue]]
    outputs: list[tuple[str, ort.OrtValue]]


def _value_of(array: Array) -> ort.OrtValue:
    """The forward's handle of the array's own memory."""
    if array.dtype == _BFLOAT16_BITS:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16_IN_ONNX)
    return ort.OrtValue.ortvalue_from_numpy(array)


def _providers_from_device(device: str) -> list[tuple[str, dict[str, Any]]]:
    """Execution providers, first choice first. Raises as `open_session` does."""
    cpu: tuple[str, dict[str, Any]] = ("CPUExecutionProvider", {})
    if device.split(":", 1)[0] == "cpu":
        check_cpu_device(device, available_cores())
        return [cpu]
    found = re.fullmatch(r"cuda:(\d{1,4})", device, re.ASCII)
    if found is None:
        raise BadInputError(
            f"device {device!r}",
            expected="cpu, cpu:N, or cuda:N with N the number of the device",
            remedy="e.g. cpu or cuda:0",
        )
    check_cuda_provider(device)
    return [(_CUDA, {"device_id": found[1]}), cpu]


def check_cuda_provider(device: str) -> None:
    """Raise MissingBackendError for `device` when ONNX Runtime here has no CUDA provider."""
    available = ort.get_available_providers()
    if _CUDA not in available:
        raise MissingBackendError(
            f"device {device!r}, but ONNX Runtime here has only {', '.join(available)}",
            expected=f"an ONNX Runtime with {_CUDA}",
            remedy=f"{pip_command()} uninstall onnxruntime, then {pip_install('gpu')} "
            "(for CUDA 13 and cuDNN 9), or use cpu",
        )


def available_cores() -> Collection[int]:
    """Numbers of the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


@dataclass(frozen=True)
class _Threading:
    """ONNX Runtime's settings of its threads."""

    threads: int | None
    """The calling one included; None: its own choice."""
    affinities: str | None
    """Cores of its own threads, those but the calling one; None: any."""


def _threading_from_device(device: str, threads: int | None) -> _Threading:
    """A device of one core and one thread has no thread of its own to keep there: it is as any other of one thread."""
    cores = cores_from_device(device)
    if cores is None:
        return _Threading(threads, None)
    count = len(cores) if threads is None else threads
    allowed = ",".join(str(core + 1) for core in cores)  # ONNX Runtime counts cores from 1
    return _Threading(count, ";".join([allowed] * (count - 1)) or None)


@dataclass(frozen=True)
class _GraphKey:
    """What makes two opened graphs the same. The files' identity tells a bundle from another put in its place."""

    files: tuple[tuple[int, ...], ...]
    """Device, inode, size and time of change of the graph and of the weights."""
    provider: str
    device: str | None
    threads: _Threading


def _shared_inference_session(
    bundle: Bundle, providers: list[tuple[str, dict[str, Any]]], threads: _Threading
) -> ort.InferenceSession:
    """The graph that another session of this process has open already, or a new one.

    Its `run_with_iobinding` may be called from several threads at once, each with a binding of its own.
    """
    states = [path.stat() for path in (bundle.graph, bundle.weights)]
    files = tuple((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
    name, options = providers[0]
    key = _GraphKey(files, name, options.get("device_id"), threads)
    with _opening:
        session = _open_graphs.get(key)
        if session is None:
            session = _open_graphs[key] = _inference_session(bundle, providers, threads)
    return session


def _inference_session(
    bundle: Bundle, providers: list[tuple[str, dict[str, Any]]], threads: _Threading
) -> ort.InferenceSession:
    """Open the graph from its file, so that external data beside it is found and mapped.

    Measured on the tiny model with 1 to 5 branches: the arena, the memory pattern, prepacking and the full optimization
    are as fast as without or faster on one thread, so they stay on. Threads that spin while they wait are faster on
    cores of their own (1.7 against 2.6 ms for the smallest window) and slower on shared ones; they stay on as well.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    if threads.threads is not None:
        options.intra_op_num_threads = threads.threads
    if threads.affinities is not None:
        options.add_session_config_entry("session.intra_op_thread_affinities", threads.affinities)
    try:
        return ort.InferenceSession(str(bundle.graph), options, providers=providers)
    except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
        raise BadInputError(
            f"ONNX Runtime {ort.__version__} cannot open {bundle.graph}: {error}",
            expected="a graph made by this version of lopa-export",
            remedy="check it with lopa-export verify, or export the checkpoint again",
        ) from error


def check_contract(bundle: Bundle, session: ort.InferenceSession, part: ModelPart) -> None:
    """Raise BadInputError unless the graph has exactly the inputs and outputs that its manifest makes of the contract.

    They are compared by name, type and shape, so that what is bound later fits, and nothing in the manifest is believed
    that the graph contradicts.
    """
    manifest = bundle.manifest
    for what, found, expected in (
        ("inputs", session.get_inputs(), inputs_of_graph(manifest, part)),
        ("outputs", session.get_outputs(), outputs_of_graph(manifest, part)),
    ):
        others = sorted({value.name for value in found} ^ set(expected))
        if others:
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            raise BadInputError(
                f"{bundle.graph} has other {what} than its manifest says: {others[:_SHOWN]}{more}",
                expected=f"the {what} of contract version {contract.CONTRACT_VERSION} in the {manifest.dialect} "
                "dialect",
                remedy="export the checkpoint again",
            )
        difference = difference_of_values(found, expected)
        if difference is not None:
            raise BadInputError(
                f"{bundle.graph} has among its {what} {difference[0]}",
                expected=f"{difference[1]}, as its manifest makes it",
                remedy="export the checkpoint again",
            )
