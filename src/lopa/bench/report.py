"""What every benchmark report says about its run, and the files a report is written to. Does not measure."""

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
from lopa.runtime.files.output_file import place_of_output, write_whole
from lopa.runtime.files.untrusted_input import refused_as_bad_input


@dataclass(frozen=True)
class Run:
    """What was run, on what, where and when."""

    date: str
    command: str
    machine: Machine
    bundle: str
    """Its folder's name."""
    bundle_sha256: str
    """Of its manifest.json, which holds the digests of its other files."""
    device: str
    threads: int | None
    """Of the engine; None: its own choice."""


@dataclass(frozen=True)
class PromptFile:
    """The prompts that were decoded."""

    name: str
    sha256: str
    limit: int | None
    """At most so many prompts of each kind."""


def run_now(bundle: Bundle, *, device: str, threads: int | None, arguments: Sequence[str]) -> Run:
    """The record of a run that begins now; `arguments` are those of the command line, its program first."""
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
    """The record of a file of prompts."""
    return PromptFile(path.name, sha256_of_file(path), limit)


def json_from_report(report: Any) -> bytes:
    """A report (nested frozen dataclasses) as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def write_report(folder: Path, name: str, report: Any, tables: Sequence[Table]) -> None:
    """Write NAME.json and NAME.md (the tables) to `folder`, each whole or not at all."""
    data, text = files_of_report(folder, name)
    write_whole(data, json_from_report(report))
    write_whole(text, "\n".join(map(markdown_from_table, tables)).encode())


def files_of_report(folder: Path, name: str) -> tuple[Path, Path]:
    """The report's JSON and its tables in Markdown."""
    return folder / f"{name}.json", folder / f"{name}.md"


def make_folder(folder: Path) -> None:
    """Make `folder` unless it is there. Raises BadInputError when that cannot be."""
    with refused_as_bad_input(
        f"cannot write {folder}", expected="a place that can be written", remedy="choose another path"
    ):
        folder.mkdir(parents=True, exist_ok=True)


def check_output(path: Path) -> None:
    """Make the folder of `path`, and raise BadInputError unless that file can be written; it stays as it is."""
    make_folder(path.parent)
    place_of_output(path)
