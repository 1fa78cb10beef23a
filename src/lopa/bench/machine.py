"""Where and when a benchmark ran, for its report. Does not measure."""

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
    """What a reader needs to judge the seconds of a report."""

    cpu: str
    cores: int
    """That this process may use."""
    system: str
    load: float | None
    """Running processes, mean over the last minute, before the benchmark; None where the system does not tell."""
    versions: dict[str, str]
    """Python's and those of the packages that are installed."""


def machine_now() -> Machine:
    """This machine, now."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        versions={"python": platform.python_version(), "lopa-export": __version__, **_package_versions()},
    )


def machine_line(machine: Machine, date: str) -> str:
    """Return one line that says when and where something was measured, and with which versions."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    return f"{date}; {machine.cpu}, {machine.cores} cores, {machine.system}, load {machine.load}; {versions}"


def date_now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu_model() -> str:
    """The name that Linux gives it; elsewhere what Python knows."""
    if _CPU_INFO.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def _package_versions() -> dict[str, str]:
    return {package: version for package in _PACKAGES if (version := installed_version(package)) is not None}
