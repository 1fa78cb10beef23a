"""Resident memory of another process, as Linux reports it."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of one process."""

    private: int
    """RssAnon: memory of its own, which only this process can use."""
    mapped: int
    """RssFile: pages of mapped files, which processes share and the system may drop."""
    peak: int
    """VmHWM: maximum so far of both together."""


def memory_of_process(process: int) -> ProcessMemory | None:
    """Return the memory of the process with this id, or None if the system does not report it."""
    path = Path(f"/proc/{process}/status")
    if not path.is_file():
        return None
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(), re.MULTILINE))
    if not {"RssAnon", "RssFile", "VmHWM"} <= found.keys():
        return None
    return ProcessMemory(*(1024 * int(found[name]) for name in ("RssAnon", "RssFile", "VmHWM")))
