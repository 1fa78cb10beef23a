"""Open and check a bundle's graph with ONNX Runtime.

All sessions of a process with the same bundle, device and number of threads share a graph. Each graph holds another
copy of the weights, packed for the processor.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnxruntime as ort

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import check_signature
from lopa.runtime.bundle.manifest import GraphTwin
from lopa.runtime.bundle.quantized_form import cpu_form
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.cpu_kernels.kernel_library import kernel_library
from lopa.runtime.denormals import can_change, denormals_as_zero
from lopa.runtime.device_families import FAMILIES, parse_device
from lopa.runtime.errors import BadInputError, MissingBackendError, raise_if_from_handler
from lopa.runtime.sessions.cpu_cores import check_cpu_device, cores_from_device
from lopa.runtime.sessions.cuda_libraries import cuda_remedy, load_cuda_libraries
from lopa.runtime.sessions.providers import (
    CPU_PROVIDER,
    ERRORS_ONLY,
    PROVIDER,
    Providers,
    check_tf32,
    cuda_providers,
    keep_fp8_products,
    multiply_exactly,
    session_on_providers,
)

_FATAL_ONLY = 4
_DEQUANTIZED_PRODUCTS = "session.qdq_matmulnbits_accuracy_level"
"""Option for products with dequantized matrices on CPUs. Unset, ONNX Runtime 1.31 rounds the other factor to 8 bits."""
_FLOAT_ROWS, _ROUNDED_ROWS = "1", "4"
_open_graphs: weakref.WeakValueDictionary["_GraphKey", ort.InferenceSession] = weakref.WeakValueDictionary()
"""Open graphs. Each is freed with its last session."""
_open_lock = threading.RLock()


def _leave_graphs() -> None:
    """Never free the parent's graphs in a forked child. That waits for their threads, which do not exist there."""
    global _open_lock
    for graph in list(_open_graphs.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))
    _open_graphs.clear()
    _open_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_graphs)


def open_part_graph(
    bundle: Bundle, part: ModelPart, device: str, threads: int | None, *, exact: bool = False
) -> ort.InferenceSession:
    """Return the checked graph of `part` in `bundle`, opened on "cpu", cores ("cpu:0-3"), "cuda:N" or
    "cuda:N:tf32".

    If `threads` is None, one thread runs per named core. Without named cores, ONNX Runtime chooses the number. `exact`:
    open the graph itself instead of a twin, and leave activations unrounded in products with dequantized matrices,
    which is slower. Portable graphs are always exact, because they stand for other devices.

    Raises BadInputError for other devices, bfloat16 bundles on CPUs and unusable graphs. Raises MissingBackendError if
    the CUDA provider is missing or does not start.
    """
    providers = _providers_from_device(device)
    check_types(bundle, device)
    sizes, graph, is_mapped = bundle.manifest.dimensions, bundle.graph, False
    is_portable = bundle.manifest.dialect == "portable"
    exact = exact or is_portable
    if providers[0][0] == CPU_PROVIDER and not exact:
        form = cpu_form(bundle)
        graph, is_mapped = bundle.twin("cpu", form) or bundle.graph, form == "mapped"
    opening = partial(
        _open_graph,
        bundle,
        exact=exact,
        multiplies_integers=not is_portable,
        reuse_memory=sizes.moe is None or is_mapped,
        prepacks=sizes.canvas is None or not is_mapped,
    )
    session = _shared_graph(
        graph, bundle.weights, providers, _threading_from_device(device, threads), opening, exact=exact
    )
    if session.get_providers()[0] != providers[0][0]:
        raise MissingBackendError(
            f"device {device!r}: the CUDA provider did not start; ONNX Runtime fell back to {session.get_providers()}",
            expected="a CUDA device with this number, and CUDA 13 and cuDNN 9 on the loader path",
            remedy=cuda_remedy(),
        )
    check_contract(bundle, graph, session, part)
    return session


def check_types(bundle: Bundle, device: str) -> None:
    """Raise BadInputError for a number format that `device` cannot run, or on which its suffix has no effect."""
    family = parse_device(device).family.name
    if family == "cuda":
        check_tf32(bundle, device)
    if bundle.manifest.dialect == "portable" and bundle.manifest.dtype == "bfloat16":
        raise BadInputError(
            f"device {device!r} cannot run {bundle.path}, a portable graph in bfloat16",
            expected="a graph in the standard dialect, or in float32 or float16",
            remedy="export the checkpoint with --dialect both, or use the device that the portable graph was made for",
        )
    if family == "cpu" and bundle.manifest.dtype == "bfloat16":
        raise BadInputError(
            f"device {device!r} cannot run {bundle.path}, a bundle in bfloat16",
            expected="float32 or float16, because ONNX Runtime has no bfloat16 operators on CPUs",
            remedy="export the checkpoint with --dtype float32 or float16, or use --device "
            f"{bundle.manifest.bfloat16_devices} (slow)",
        )


def quiet_run() -> ort.RunOptions:
    """Return options of a run that prints nothing. Errors of the run are raised with the same text."""
    options = ort.RunOptions()
    options.log_severity_level = _FATAL_ONLY
    return options


def _providers_from_device(device: str) -> Providers:
    """Return the execution providers, preferred first. Raises like `open_part_graph`."""
    if parse_device(device, "cpu", "cuda").family.name == "cpu":
        check_cpu_device(device, available_cores())
        return [(CPU_PROVIDER, {})]
    check_cuda_provider(device)
    load_cuda_libraries()
    return cuda_providers(device)


def check_cuda_provider(device: str) -> None:
    """Raise MissingBackendError if this ONNX Runtime has no CUDA provider."""
    available = ort.get_available_providers()
    if PROVIDER not in available:
        raise MissingBackendError(
            f"device {device!r}, but the installed ONNX Runtime has only {', '.join(available)}",
            expected=f"an ONNX Runtime with {PROVIDER}",
            remedy=f"{FAMILIES['cuda'].ability.remedy()} (for CUDA 13 and cuDNN 9), or use cpu",
        )


def available_cores() -> Collection[int]:
    """Return the numbers of the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


@dataclass(frozen=True)
class _Threading:
    """Thread settings of ONNX Runtime."""

    threads: int | None
    """Number of threads including the caller, or None for ONNX Runtime's choice."""
    affinities: str | None
    """Cores of each thread except the caller, or None for any."""


def _threading_from_device(device: str, threads: int | None) -> _Threading:
    """Return the thread settings of a device. With one thread, ONNX Runtime has no thread to pin, so the graph can be
    shared."""
    cores = cores_from_device(device)
    if cores is None:
        return _Threading(threads, None)
    count = len(cores) if threads is None else threads
    allowed = ",".join(str(core + 1) for core in cores)  # ONNX Runtime counts cores from 1
    return _Threading(count, ";".join([allowed] * (count - 1)) or None)


@dataclass(frozen=True)
class _GraphKey:
    """Identity of an opened graph. File identity distinguishes a bundle from another one at the same path."""

    files: tuple[tuple[int, ...], ...]
    """Device, inode, size and modification time of graph and weights."""
    provider: str
    options: tuple[tuple[str, str], ...]
    threads: _Threading
    exact: bool


def _shared_graph(
    graph: Path,
    weights: Path,
    providers: Providers,
    threads: _Threading,
    opening: Callable[[Path, Providers, _Threading], ort.InferenceSession],
    *,
    exact: bool,
) -> ort.InferenceSession:
    """Return the graph that another session of this process already opened, or a new one from `opening`.

    Several threads may call the graph's
    `run_with_iobinding` at once, each with its own binding.
    """
    states = [path.stat() for path in (graph, weights)]
    files = tuple((state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns) for state in states)
    name, options = providers[0]
    key = _GraphKey(files, name, tuple(options.items()), threads, exact)
    with _open_lock:
        session = _open_graphs.get(key)
        if session is None:
            session = _open_graphs[key] = opening(graph, providers, threads)
    return session


def _open_graph(
    bundle: Bundle,
    graph: Path,
    providers: Providers,
    threads: _Threading,
    *,
    exact: bool,
    multiplies_integers: bool,
    reuse_memory: bool,
    prepacks: bool,
) -> ort.InferenceSession:
    """Open a graph of `bundle` from its file, so that its external data is found and mapped.

    `exact` leaves activations unrounded in products with dequantized matrices. `multiplies_integers` is False for a
    graph that dequantizes all matrices of integers.

    Without `reuse_memory`, activations take more memory, and graphs with a product per expert open three to 18 times as
    fast.

    Arena and memory patterns are off. The arena keeps the memory of the largest batch until the process ends.
    Patterns are kept for every shape of the inputs, without limit. Forwards take the same time without both
    (docs/measurements/serving.md). Full optimization stays on. `prepacks` is False for mapped graphs of canvases, whose
    product with the embedding would copy it (docs/measurements/cpu.md). Spinning threads are faster on exclusive
    cores (1.7 against 2.6 ms for the smallest window) and slower on shared cores. Spinning stays on too.

    ONNX Runtime's own threads flush denormals to zero (lopa.runtime.denormals). The first session of a process sets
    this mode permanently on the calling thread too, so `denormals_as_zero` restores the thread.
    """
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.enable_mem_reuse = reuse_memory
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    if multiplies_integers:
        multiply_exactly(options)
    keep_fp8_products(options, bundle)
    if not prepacks:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry(_DEQUANTIZED_PRODUCTS, _FLOAT_ROWS if exact else _ROUNDED_ROWS)
    if threads.threads is not None:
        options.intra_op_num_threads = threads.threads
    if threads.affinities is not None:
        options.add_session_config_entry("session.intra_op_thread_affinities", threads.affinities)
    if can_change():
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    kernels = kernel_library()
    if kernels is not None:
        kernels.add_operators(options)
    try:
        with denormals_as_zero():
            session = session_on_providers(graph, options, providers)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise_if_from_handler(error)
        raise BadInputError(
            f"ONNX Runtime {ort.__version__} cannot open {graph}: {error}",
            expected="a graph made by this version of lopa-export",
            remedy="check the bundle with lopa-export verify, or export the checkpoint again",
        ) from error
    return session


def check_contract(
    bundle: Bundle, graph: Path, session: ort.InferenceSession, part: ModelPart, twin: GraphTwin | None = None
) -> None:
    """Check the signature of `session`, which has opened the file `graph`, a twin for CUDA if `twin` is given."""
    check_signature(graph, bundle.manifest, part, session.get_inputs(), session.get_outputs(), twin)
