"""Choice of the graph on "cuda:N": the twin with this project's operators, or the plain graph, and why."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import GraphTwin, ModelDimensions
from lopa.runtime.checked_values import shown
from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.cuda_kernels.attention_tasks import PAIRS
from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary, cuda_library, library_status
from lopa.runtime.cuda_kernels.kernel_archive import kernels_for_target
from lopa.runtime.errors import BadInputError, EngineFailedError

VARIABLE = "LOPA_CUDA_KERNELS"
"""Environment variable: "off" runs ONNX Runtime's kernels only."""
_log = logging.getLogger(__name__)
_MAX_HEAD_SIZE = 256
_MULTIPLE = 16
"""Sizes of rows are multiples, as the kernels load 16 numbers at once."""


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
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "off"):
        raise BadInputError(
            f"{VARIABLE}={shown(wanted)}", expected="auto or off", remedy=f"correct {VARIABLE} or unset it"
        )
    if wanted == "off":
        return f"{VARIABLE}=off"
    library = cuda_library()
    if library is None:
        return library_status() or "their library is missing"
    found = cuda_device(device)
    archive = kernels_for_target(found.architecture)
    if isinstance(archive, str):
        return archive
    if found.cuda < archive.cuda:
        return (
            f"the driver supports CUDA {_cuda(found.cuda)}, and the kernels for {archive.name} need "
            f"{_cuda(archive.cuda)}: install driver {archive.driver} or newer"
        )
    try:
        with CAPTURE_LOCK.shared():
            library.load(device, archive.kernels)
    except EngineFailedError as error:
        _log.warning("%s; %s", error.received, error.remedy)
        return error.received
    return library


def cuda_operators(bundle: Bundle, library: CudaLibrary | str) -> CudaOperators | str:
    """Return what the bundle's twin for CUDA needs, or the reason why the plain graph runs.

    Raises BadInputError for a damaged twin.
    """
    graph = bundle.twin("cuda")
    if graph is None:
        return "the bundle has no graph with them; export the checkpoint again"
    reason = unsupported_size(bundle.manifest.dimensions)
    if reason is not None:
        return f"they do not support {reason}"
    if isinstance(library, str):
        return library
    (twin,) = (each for each in bundle.manifest.twins if bundle.file(each.graph) == graph)
    return CudaOperators(graph, twin, library)


def _cuda(version: int) -> str:
    """Return a version of CUDA as text, e.g. "12.8" for 12080."""
    return f"{version // 1000}.{version % 1000 // 10}"


def unsupported_size(dimensions: ModelDimensions) -> str | None:
    """Return the size of the model for which there is no kernel, e.g. "heads of 512, only up to 256", or None."""
    if dimensions.head_size > _MAX_HEAD_SIZE:
        return f"heads of {dimensions.head_size}, only up to {_MAX_HEAD_SIZE}"
    if dimensions.heads // dimensions.kv_heads > PAIRS:
        return f"{dimensions.heads // dimensions.kv_heads} query heads per key-value head, only up to {PAIRS}"
    shared = 0 if dimensions.moe is None else dimensions.moe.shared_size
    sizes = (dimensions.head_size, dimensions.hidden_size, dimensions.intermediate_size, shared)
    odd = next((size for size in sizes if size % _MULTIPLE), None)
    return None if odd is None else f"rows of {odd} numbers, only multiples of {_MULTIPLE}"
