"""Form of a bundle's quantized matrices on the device `cpu`.

mapped: lopa's own kernels read int8 and int4 matrices in the bundle's mapped file (lopa.runtime.cpu_kernels). A session
opens at once and takes no memory of its own for them. The experts of sparse layers may also be floating-point.
packed: ONNX Runtime copies the matrices into the layout of its kernels when a session opens.
unpacked: int4 matrices become int8 when a session opens. This is faster than packed and takes twice the memory.

All sessions of a process on one bundle use the same form, so that devices that share branches compute alike.
"""

import logging
import os
from functools import cache
from pathlib import Path

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import CpuForm
from lopa.runtime.checked_values import shown
from lopa.runtime.cpu_kernels.kernel_library import kernel_library
from lopa.runtime.errors import BadInputError

VARIABLE = "LOPA_WEIGHTS"
"""Name of the environment variable that sets the form: mapped, packed, unpacked or auto (the default)."""
_LOG = logging.getLogger(__name__)
_FORMS: dict[str, CpuForm | None] = {"auto": None, "mapped": "mapped", "packed": "packed", "unpacked": "unpacked"}
_MEMORY_FACTOR = 2.0
"""Free memory that `auto` requires for unpacked matrices, as a multiple of their size. An engine packs a copy, and
caches need memory.
"""
_MEMINFO, _OWN_GROUP, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cpu_form(bundle: Bundle) -> CpuForm:
    """Return the form in which `bundle` is opened on this machine: packed if it has no graph for a requested one.

    Raises BadInputError for an unknown form in the environment, and for a requested form that this machine does not
    support.
    """
    requested, manifest = requested_form(), bundle.manifest
    if manifest.quantization is None and manifest.dimensions.moe is None:
        return "packed"
    form = _best_form(bundle) if requested is None else _available_form(bundle, requested)
    kind = manifest.dtype if manifest.quantization is None else manifest.quantization.kind
    _LOG.info("%s: %s weights %s", bundle.path, kind, _MEANINGS[form])
    return form


def requested_form() -> CpuForm | None:
    """Return the form that the environment requests, or None for `auto`. Raises BadInputError for an unknown one."""
    name = os.environ.get(VARIABLE) or "auto"
    if name not in _FORMS:
        raise BadInputError(
            f"{VARIABLE}={shown(name)}",
            expected="auto, mapped, packed or unpacked",
            remedy=f"correct {VARIABLE} or unset it",
        )
    return _FORMS[name]


_MEANINGS: dict[CpuForm, str] = {
    "mapped": "are read in place, in the bundle's mapped file",
    "packed": "are copied into ONNX Runtime's packed form",
    "unpacked": "are unpacked to int8, because that much memory is free",
}


def _best_form(bundle: Bundle) -> CpuForm:
    if bundle.cpu_graph("mapped") is not None and kernel_library() is not None:
        return "mapped"
    if bundle.cpu_graph("unpacked") is not None and _has_memory(bundle.path.absolute(), unpacked_bytes(bundle)):
        return "unpacked"
    return "packed"


def _available_form(bundle: Bundle, requested: CpuForm) -> CpuForm:
    """Return `requested`, or packed if `bundle` has no graph for it."""
    if requested == "mapped" and kernel_library() is None:
        raise BadInputError(
            f"{VARIABLE}=mapped, but the kernels of lopa.runtime.cpu_kernels are not available",
            expected="an x86-64 processor with AVX2, and a C++ compiler when lopa-export was installed",
            remedy=f"install a C++ compiler and reinstall lopa-export, or unset {VARIABLE}",
        )
    if requested != "packed" and bundle.cpu_graph(requested) is None:
        _LOG.warning("%s has no graph for %s=%s; export the checkpoint again", bundle.path, VARIABLE, requested)
        return "packed"
    if requested == "unpacked":
        _check_memory(bundle)
    return requested


def _check_memory(bundle: Bundle) -> None:
    """Raise BadInputError if the unpacked matrices of `bundle` do not fit into free memory."""
    need, free = unpacked_bytes(bundle), free_memory()
    if free is not None and need > free:
        raise BadInputError(
            f"{VARIABLE}=unpacked for {bundle.path} needs {need / 1e9:.2f} GB, but {free / 1e9:.2f} GB of memory are "
            "free",
            expected="enough free memory for the unpacked matrices",
            remedy=f"free memory, or unset {VARIABLE}",
        )


def unpacked_bytes(bundle: Bundle) -> int:
    """Return the bytes of all int4 matrices of `bundle` after unpacking."""
    tensors = bundle.manifest.tensors.values()
    return sum(record.shape[0] * record.shape[1] for record in tensors if record.dtype == "int4")


@cache
def _has_memory(path: Path, need: int) -> bool:  # noqa: ARG001
    """Return True if memory suffices to unpack the bundle at `path`, `need` bytes.

    The result is cached per process, because the first session's memory would change the result for later sessions.
    """
    free = free_memory()
    return free is not None and need * _MEMORY_FACTOR <= free


def free_memory() -> int | None:
    """Return the bytes that this process can still allocate without swapping, or None if unknown (systems other than
    Linux).

    This is the minimum of the machine's available memory and the limits of version 2 control groups, as in a container.
    """
    found = [line.split() for line in _lines(_MEMINFO) if line.startswith("MemAvailable:")]
    if not found:
        return None
    free = int(found[0][1]) * 1024
    own = next((line.removeprefix("0::/").strip() for line in _lines(_OWN_GROUP) if line.startswith("0::")), "")
    group = _GROUPS / own
    for folder in (group, *group.parents):
        if not folder.is_relative_to(_GROUPS):
            break
        limit, used = _lines(folder / "memory.max"), _lines(folder / "memory.current")
        if limit and used and limit[0].strip().isdigit():
            cached = (line.split()[1] for line in _lines(folder / "memory.stat") if line.startswith("inactive_file "))
            free = min(free, int(limit[0]) - int(used[0]) + sum(map(int, cached)))
    return max(free, 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
