"""Choice of the graph on "cuda:N": the twin with this project's operators, or the plain graph, and why."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import GraphTwin, ModelDimensions
from lopa.runtime.checked_values import shown
from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda.driver import CudaDevice, cuda_device
from lopa.runtime.cuda_kernels.attention_tasks import PAIRS
from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary, cuda_library, library_status
from lopa.runtime.cuda_kernels.kernel_archive import KernelArchive, kernels_for_target, needs_compilation
from lopa.runtime.errors import BadInputError, EngineFailedError

VARIABLE = "LOPA_CUDA_KERNELS"
"""Environment variable: "off" runs the plain graph, "auto" the operators where they can run."""
_log = logging.getLogger(__name__)
_MAX_HEAD_SIZE = 256
_MAX_FULL_HEAD_SIZE = 512
_MAX_EXPERTS = 512
_MULTIPLE = 16
"""Sizes of rows are multiples, as the kernels load 16 numbers at once."""
_rejected: dict[int, str] = {}
"""Reason why the driver rejected the kernels, by device. Only the thread that opens a device can try again."""


@dataclass(frozen=True)
class CudaOperators:
    """The twin that runs, and the library with its operators."""

    graph: Path
    twin: GraphTwin
    library: CudaLibrary


def loaded_library(device: int) -> CudaLibrary | str:
    """Return the library with its kernels loaded for a device, whose context is current, or why it cannot be used.

    Raises MissingBackendError if the driver or the device is missing, and BadInputError for an unknown VARIABLE.
    """
    library = _installed_library()
    if isinstance(library, str):
        return library
    archive = _archive_of_device(cuda_device(device))
    if isinstance(archive, str):
        return archive
    _rejected.pop(device, None)
    try:
        with CAPTURE_LOCK.shared():
            library.load(device, archive.kernels)
    except EngineFailedError as error:
        _log.warning("%s; the plain graph runs instead. Remedy: %s", error.received, error.remedy)
        _rejected[device] = error.received
        return error.received
    return library


def _installed_library() -> CudaLibrary | str:
    """Return the library, or why no GPU can use it. Raises BadInputError for an unknown VARIABLE."""
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "off"):
        raise BadInputError(
            f"{VARIABLE}={shown(wanted)}", expected="auto or off", remedy=f"correct {VARIABLE} or unset it"
        )
    if wanted == "off":
        return f"{VARIABLE}=off"
    return cuda_library() or library_status() or "their library is missing"


def _archive_of_device(found: CudaDevice) -> KernelArchive | str:
    """Return the kernels for a GPU, or why there are none that its driver can load."""
    archive = kernels_for_target(found.architecture)
    if isinstance(archive, str) or found.cuda >= archive.cuda:
        return archive
    return (
        f"the driver supports CUDA {_cuda(found.cuda)}, and the kernels for {archive.name} need "
        f"{_cuda(archive.cuda)}: install driver {archive.driver} or newer"
    )


def cuda_operators(bundle: Bundle, library: CudaLibrary | str) -> CudaOperators | str:
    """Return what the bundle's twin for CUDA needs, or the reason why the plain graph runs.

    Raises BadInputError for a damaged twin.
    """
    graph = bundle.twin("cuda")
    if graph is None:
        return "the bundle has no graph with them that fits; export the checkpoint again, in the standard dialect"
    reason = unsupported_size(bundle.manifest.dimensions)
    if reason is not None:
        return f"they do not support {reason}"
    if isinstance(library, str):
        return library
    (twin,) = (each for each in bundle.manifest.twins if bundle.file(each.graph) == graph)
    return CudaOperators(graph, twin, library)


def graph_text(bundle: Bundle, device: int) -> str:
    """Return which graph of the bundle runs on a device that is open, and why, for users."""
    found = cuda_operators(bundle, _rejected.get(device) or loaded_library(device))
    if isinstance(found, CudaOperators):
        return f"{found.graph.name}, with this project's operators"
    return f"{bundle.graph.name}, without this project's operators: {found}"


def gpu_text(device: int) -> str:
    """Return a GPU's properties and whether the operators run there, for users. Nothing is compiled or loaded.

    Raises MissingBackendError and BadInputError like `loaded_library`.
    """
    found, library = cuda_device(device), _installed_library()
    if not isinstance(library, str) and needs_compilation(found.architecture):
        operators = "yes; Triton compiles their kernels for some minutes when the device is first opened"
    else:
        usable = library if isinstance(library, str) else _archive_of_device(found)
        operators = f"no, {usable}" if isinstance(usable, str) else f"yes, kernels for {usable.name}"
    return (
        f"{found.name}, compute capability {found.capability}, driver for CUDA {_cuda(found.cuda)}; this project's "
        f"operators: {operators}"
    )


def _cuda(version: int) -> str:
    """Return a version of CUDA as text, e.g. "12.8" for 12080."""
    return f"{version // 1000}.{version % 1000 // 10}"


def unsupported_size(dimensions: ModelDimensions) -> str | None:
    """Return the size of the model for which there is no kernel, e.g. "heads of 512, only up to 256", or None."""
    canvas, layers = dimensions.canvas, [(dimensions.kv_heads, dimensions.head_size, _MAX_HEAD_SIZE)]
    if canvas is not None:
        layers.append((canvas.full_kv_heads, canvas.full_head_size, _MAX_FULL_HEAD_SIZE))
    for kv_heads, size, largest in layers:
        if size > largest:
            return f"heads of {size}, only up to {largest}"
        if dimensions.heads // kv_heads > PAIRS:
            return f"{dimensions.heads // kv_heads} query heads per key-value head, only up to {PAIRS}"
    moe = dimensions.moe
    if moe is not None and moe.experts > _MAX_EXPERTS:
        return f"{moe.experts} experts, only up to {_MAX_EXPERTS}"
    of_experts = () if moe is None else (moe.shared_size, moe.expert_size)
    sizes = (*(size for _, size, _ in layers), dimensions.hidden_size, dimensions.intermediate_size, *of_experts)
    odd = next((size for size in sizes if size % _MULTIPLE), None)
    return None if odd is None else f"rows of {odd} numbers, only multiples of {_MULTIPLE}"
