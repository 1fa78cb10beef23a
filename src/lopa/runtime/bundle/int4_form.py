"""Form of int4 matrices on CPUs: packed, or unpacked to int8, as the user chose or as free memory allows.

Unpacked matrices are faster (docs/how-to/devices.md) but take one byte per weight, twice the packed size. All sessions
of a process on one bundle use the same form, so that devices that share branches compute alike.
"""

import logging
import os
from functools import cache
from pathlib import Path

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

VARIABLE = "LOPA_INT4"
"""Name of the environment variable that sets the form: packed, unpacked or auto (the default)."""
_LOG = logging.getLogger(__name__)
_FORMS = ("auto", "packed", "unpacked")
_MEMORY_FACTOR = 2.0
"""Free memory that `auto` requires, as a multiple of the unpacked size. An engine packs a copy, and caches need
memory.
"""
_MEMINFO, _OWN_GROUP, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def unpacked_graph(bundle: Bundle) -> Path | None:
    """Return the graph of `bundle` with unpacked int4 matrices if it should be opened here, otherwise None.

    Raises BadInputError for an unknown form, and for `unpacked` without enough memory.
    """
    if bundle.manifest.quantization is None or bundle.manifest.quantization.kind != "int4":
        return None
    form = os.environ.get(VARIABLE) or "auto"
    if form not in _FORMS:
        raise BadInputError(
            f"{VARIABLE}={shown(form)}",
            expected="auto, packed or unpacked",
            remedy=f"correct {VARIABLE} or unset it",
        )
    graph = None if form == "packed" else bundle.unpacked_graph()
    if graph is None:
        if form == "unpacked":
            _LOG.warning("%s has no graph for %s=unpacked; export the checkpoint again", bundle.path, VARIABLE)
        return None
    need = unpacked_bytes(bundle)
    return graph if _has_memory(bundle.path.absolute(), need, form) else None


def unpacked_bytes(bundle: Bundle) -> int:
    """Return the bytes of all int4 matrices of `bundle` after unpacking."""
    tensors = bundle.manifest.tensors.values()
    return sum(record.shape[0] * record.shape[1] for record in tensors if record.dtype == "int4")


@cache
def _has_memory(path: Path, need: int, form: str) -> bool:
    """Return True if memory suffices.

    The result is cached per process, because the first session's memory would change the result for later sessions.
    """
    free = free_memory()
    if form == "auto":
        return free is not None and need * _MEMORY_FACTOR <= free
    if free is not None and need > free:
        raise BadInputError(
            f"{VARIABLE}=unpacked for {path} needs {need / 1e9:.2f} GB, but {free / 1e9:.2f} GB of memory are free",
            expected="enough free memory for the unpacked matrices",
            remedy=f"free memory, or set {VARIABLE}=packed, which is slower and takes half",
        )
    return True


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
