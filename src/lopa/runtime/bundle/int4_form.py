"""Whether a CPU multiplies with int4 matrices packed or unpacked to int8: by what a user asks, else by free memory.

Unpacked they are faster (docs/how-to/devices.md) and take a byte for each weight, twice the packed form. All sessions
of a process on one bundle get the same form, so that devices which share branches compute alike. Knows the machine's
memory, no engine.
"""

import logging
import os
from functools import cache
from pathlib import Path

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError

VARIABLE = "LOPA_INT4"
"""Of the environment: packed, unpacked, or auto, which is the default."""
_LOG = logging.getLogger(__name__)
_FORMS = ("auto", "packed", "unpacked")
_ROOM = 2.0
"""Free memory that `auto` wants, as a multiple of the unpacked matrices: an engine packs a copy, caches need some."""
_MEMINFO, _OWN_GROUP, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def unpacked_graph(bundle: Bundle) -> Path | None:
    """The graph of `bundle` with int4 matrices unpacked, if it is the one to open here.

    Raises BadInputError for a form that there is not, and for the unpacked one when there is too little memory.
    """
    if bundle.manifest.quantization is None or bundle.manifest.quantization.kind != "int4":
        return None
    asked = os.environ.get(VARIABLE) or "auto"
    if asked not in _FORMS:
        raise BadInputError(
            f"{VARIABLE}={shown(asked)}",
            expected="auto, packed or unpacked: the form of int4 matrices on a CPU",
            remedy=f"correct it, or unset {VARIABLE}",
        )
    graph = None if asked == "packed" else bundle.unpacked_graph()
    if graph is None:
        if asked == "unpacked":
            _LOG.warning("%s has no graph for %s=unpacked; export the checkpoint again", bundle.path, VARIABLE)
        return None
    need = unpacked_bytes(bundle)
    return graph if _has_room(bundle.path.absolute(), need, asked) else None


def unpacked_bytes(bundle: Bundle) -> int:
    """Memory of all int4 matrices of `bundle` unpacked."""
    tensors = bundle.manifest.tensors.values()
    return sum(record.shape[0] * record.shape[1] for record in tensors if record.dtype == "int4")


@cache
def _has_room(path: Path, need: int, asked: str) -> bool:
    """Decided once in a process: what the first session takes is missing for the second, which is to be its like."""
    free = free_memory()
    if asked == "auto":
        return free is not None and need * _ROOM <= free
    if free is not None and need > free:
        raise BadInputError(
            f"{VARIABLE}=unpacked for {path}, whose matrices take {need / 1e9:.2f} GB unpacked, "
            f"and {free / 1e9:.2f} GB of memory are free",
            expected="as much free memory as the unpacked matrices take",
            remedy=f"free some, or set {VARIABLE}=packed, which takes half of it and is slower",
        )
    return True


def free_memory() -> int | None:
    """Bytes that this process may still take without swapping; None where the system does not say so (not Linux).

    The least of what the machine has and what the control groups of version 2 leave to the process, as in a container.
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
