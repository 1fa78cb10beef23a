"""Common part of all benchmark reports: machine, time and versions, and the files of a report."""

import os
import platform
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from lopa import __version__
from lopa.bench.table import Table, markdown_from_table
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import errors_as_bad_input
from lopa.runtime.files.output_file import check_replaceable, write_atomically
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


@dataclass(frozen=True)
class Run:
    """Command, machine, bundle and device of a benchmark run."""

    date: str
    command: str
    machine: Machine
    bundle: str
    """Name of the bundle's folder."""
    bundle_sha256: str
    """SHA-256 of manifest.json, which contains the digests of the other files."""
    device: str
    threads: int | None
    """Threads of the engine, or None for its default."""


@dataclass(frozen=True)
class PromptFile:
    """File of prompts that were decoded."""

    name: str
    sha256: str
    limit: int | None
    """Maximum number of prompts of each kind."""


def run_now(bundle: Bundle, *, device: str, threads: int | None, arguments: Sequence[str]) -> Run:
    """Return the record of a run that starts now; `arguments` is the command line with its program."""
    return Run(
        date=date_now(),
        command=shlex.join(arguments),
        machine=machine_now(),
        bundle=bundle.path.resolve().name,
        bundle_sha256=sha256_of_file(bundle.path / MANIFEST_NAME),
        device=device,
        threads=threads,
    )


def prompt_file(path: Path, limit: int | None) -> PromptFile:
    """Return the record of a file of prompts."""
    return PromptFile(path.name, sha256_of_file(path), limit)


def json_from_report(report: Any) -> bytes:
    """Return a report (nested frozen dataclasses) as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def write_report(folder: Path, name: str, report: Any, tables: Sequence[Table]) -> None:
    """Write NAME.json and NAME.md (the tables) to `folder`, each atomically."""
    data, text = files_of_report(folder, name)
    write_atomically(data, json_from_report(report))
    write_atomically(text, "\n".join(map(markdown_from_table, tables)).encode())


def files_of_report(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of the report's JSON and Markdown files."""
    return folder / f"{name}.json", folder / f"{name}.md"


def make_folder(folder: Path) -> None:
    """Create `folder` if it does not exist. Raises BadInputError if that fails."""
    with errors_as_bad_input(f"cannot write {folder}", expected="a writable folder", remedy="choose another path"):
        folder.mkdir(parents=True, exist_ok=True)


def check_output(path: Path) -> None:
    """Create the folder of `path` and raise BadInputError unless `path` is writable. An existing file is kept."""
    make_folder(path.parent)
    check_replaceable(path)
