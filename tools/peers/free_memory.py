"""Memory that a process can still allocate."""

from pathlib import Path

_MEMINFO, _OWN_GROUP, _GROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


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
