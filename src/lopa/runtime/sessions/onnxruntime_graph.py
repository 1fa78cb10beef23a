"""A bundle's graph opened by ONNX Runtime: the checks before and after, and one graph for all who ask for the same.

All sessions of a process on one bundle, device and number of threads share a graph, which holds its weights once more,
packed for the processor. Does not know what goes in and out of a forward.
"""

import os
import threading
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime as ort

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import check_signature
from lopa.runtime.bundle.int4_form import unpacked_graph
from lopa.runtime.bundle.unpacked_int4 import UnpackedMatrices, unpacked_matrices
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.denormals import can_change, denormals_as_zero
from lopa.runtime.device_families import FAMILIES, parse_device
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.sessions.cpu_cores import check_cpu_device, cores_from_device
from lopa.runtime.sessions.cuda_libraries import cuda_remedy, load_cuda_libraries

_ERRORS_ONLY, _FATAL_ONLY = 3, 4
_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_open_graphs: weakref.WeakValueDictionary["_GraphKey", ort.InferenceSession] = weakref.WeakValueDictionary()
"""Graphs in use; each is freed with its last session."""
_opening = threading.Lock()


def graph_of_part(bundle: Bundle, part: ModelPart, device: str, threads: int | None) -> ort.InferenceSession:
    """The graph of `bundle`, that of `part`, opened on "cpu", on cores ("cpu:0-3") or on "cuda:N", and checked.

    `threads` None leaves their number to ONNX Runtime, or is one for each core named. Raises BadInputError for another
    device, a bfloat16 bundle or a graph that cannot be used, MissingBackendError when ONNX Runtime here has no CUDA
    provider or it does not start.
    """
    providers = _providers_from_device(device)
    check_types(bundle, device)
    graph, given = bundle.graph, None
    if providers[0][0] == _CPU:
        unpacked = unpacked_graph(bundle)
        if unpacked is None:
            graph = bundle.graph_for_cpu()
        else:
            graph, given = unpacked, partial(unpacked_matrices, bundle, part)
    session = _shared_graph(graph, bundle.weights, providers, _threading_from_device(device, threads), given)
    if session.get_providers()[0] != providers[0][0]:
        raise MissingBackendError(
            f"device {device!r}: the CUDA provider did not start, ONNX Runtime fell back to {session.get_providers()}",
            expected="a CUDA device of this number, and the CUDA 13 and cuDNN 9 libraries on the loader path",
            remedy=cuda_remedy(),
        )
    check_contract(bundle, graph, session, part)
    return session


def check_types(bundle: Bundle, device: str) -> None:
    """Raise BadInputError for a bundle in bfloat16 that ONNX Runtime cannot run on `device`."""
    if parse_device(device).family.name == "cpu" and bundle.manifest.dtype == "bfloat16":
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


def quiet_run() -> ort.RunOptions:
    """Options of a run that prints nothing: what goes wrong in it is raised in the same words."""
    options = ort.RunOptions()
    options.log_severity_level = _FATAL_ONLY
    return options


def _providers_from_device(device: str) -> list[tuple[str, dict[str, Any]]]:
    """Execution providers, first choice first. Raises as `graph_of_part` does."""
    cpu: tuple[str, dict[str, Any]] = (_CPU, {})
    name = parse_device(device, "cpu", "cuda")
    if name.family.name == "cpu":
        check_cpu_device(device, available_cores())
        return [cpu]
    check_cuda_provider(device)
    load_cuda_libraries()
    return [(_CUDA, {"device_id": name.rest}), cpu]


def check_cuda_provider(device: str) -> None:
    """Raise MissingBackendError for `device` when ONNX Runtime here has no CUDA provider."""
    available = ort.get_available_providers()
    if _CUDA not in available:
        raise MissingBackendError(
            f"device {device!r}, but ONNX Runtime here has only {', '.join(available)}",
            expected=f"an ONNX Runtime with {_CUDA}",
            remedy=f"{FAMILIES['cuda'].ability.remedy()} (for CUDA 13 and cuDNN 9), or use cpu",
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


def _shared_graph(
    graph: Path,
    weights: Path,
    providers: list[tuple[str, dict[str, Any]]],
    threads: _Threading,
    given: Callable[[], UnpackedMatrices] | None,
) -> ort.InferenceSession:
    """The graph that another session of this process has open already, or a new one.

    `given` makes the matrices that are in no file.
    Its `run_with_iobinding` may be called from several threads at once, each with a binding of its own.
    """
    states = [path.stat() for path in (graph, weights)]
    files = tuple((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
    name, options = providers[0]
    key = _GraphKey(files, name, options.get("device_id"), threads)
    with _opening:
        session = _open_graphs.get(key)
        if session is None:
            session = _open_graphs[key] = _opened_graph(graph, providers, threads, given)
    return session


def _opened_graph(
    graph: Path,
    providers: list[tuple[str, dict[str, Any]]],
    threads: _Threading,
    given: Callable[[], UnpackedMatrices] | None,
) -> ort.InferenceSession:
    """Open the graph from its file, so that external data beside it is found and mapped.

    Measured on the tiny model with 1 to 5 branches: the arena, the memory pattern, prepacking and the full optimization
    are as fast as without or faster on one thread, so they stay on. Threads that spin while they wait are faster on
    cores of their own (1.7 against 2.6 ms for the smallest window) and slower on shared ones; they stay on as well.

    ONNX Runtime's own threads take denormal numbers for zero (lopa.runtime.denormals); the first session of a process
    would change the thread that opens it for good, too.
    """
    options = ort.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    if threads.threads is not None:
        options.intra_op_num_threads = threads.threads
    if threads.affinities is not None:
        options.add_session_config_entry("session.intra_op_thread_affinities", threads.affinities)
    matrices = None if given is None else given()
    if matrices is not None:
        values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in matrices.arrays.items()}
        options.add_external_initializers(list(values), list(values.values()))
    if can_change():
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    try:
        with denormals_as_zero():
            session = ort.InferenceSession(str(graph), options, providers=providers)
    except Exception as error:  # ONNX Runtime's exceptions have no common base of their own
        raise BadInputError(
            f"ONNX Runtime {ort.__version__} cannot open {graph}: {error}",
            expected="a graph made by this version of lopa-export",
            remedy="check it with lopa-export verify, or export the checkpoint again",
        ) from error
    if matrices is not None:
        # ONNX Runtime has copies of those that it packed for the processor, and reads the others where they are.
        matrices.leave_memory()
        weakref.finalize(session, matrices.arrays.clear)
    return session


def check_contract(bundle: Bundle, graph: Path, session: ort.InferenceSession, part: ModelPart) -> None:
    """As check_signature, of `session`, which has opened the file `graph`."""
    check_signature(graph, bundle.manifest, part, session.get_inputs(), session.get_outputs())
