"""Common part of all benchmark reports, and the files of a report."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lopa.bench.machine import Machine, date_now, machine_now
from lopa.bench.table import Table, markdown_from_table
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import errors_as_bad_input
from lopa.runtime.files.output_file import check_replaceable, write_atomically


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
