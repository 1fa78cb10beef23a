"""Machine, time and versions of a benchmark run, for its report."""

import os
import platform
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lopa import __version__
from lopa.runtime.install_hint import installed_version

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "tensorrt", "tokenizers", "torch", "triton")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """Hardware and software that a benchmark ran on."""

    cpu: str
    cores: int
    """Cores available to this process."""
    system: str
    load: float | None
    """Mean load of the last minute before the benchmark, or None if the system does not report it."""
    versions: dict[str, str]
    """Versions of Python and of the installed packages."""


def machine_now() -> Machine:
    """Describe the current machine."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        versions={"python": platform.python_version(), "lopa-export": __version__, **_package_versions()},
    )


def machine_line(machine: Machine, date: str) -> str:
    """Return one line with the date, machine and versions of a measurement."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"{date}; {machine.cpu}, {machine.cores} cores, {machine.system}, load {machine.load}; {versions}"


def date_now() -> str:
    """Return the current UTC time in ISO 8601 format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu_model() -> str:
    """Return the CPU name from /proc/cpuinfo, or Python's value on other systems."""
    if _CPU_INFO.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _package_versions() -> dict[str, str]:
    return {package: version for package in _PACKAGES if (version := installed_version(package)) is not None}
