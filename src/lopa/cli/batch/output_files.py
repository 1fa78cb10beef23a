"""The files of `lopa-export generate`: checked and locked before anything is done, emptied before the first line.

A FIFO or a device is opened only then, since opening a FIFO waits for its reader.
"""

import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Self

import click

from lopa.cli.batch.prompt_lines import STANDARD_INPUT
from lopa.runtime.files.output_file import OutputLines, OutputPlace, place_of_output


@dataclass(frozen=True)
class OutputFiles:
    """Where results and steps go."""

    output: OutputPlace | None
    """None: standard output."""
    trace: OutputPlace | None
    _locked: dict[Path, OutputLines] = field(default_factory=dict)
    """The regular files among them, by their paths, once `lock` was called."""

    @classmethod
    def looked_at(cls, prompts: Path | None, output: Path | None, trace: Path | None, timeline: Path | None) -> Self:
        """Alters nothing. Raises BadInputError for a path that cannot be written, UsageError for one file twice."""
        places = {
            name: place_of_output(path)
            for name, path in (("--output", output), ("--trace", trace), ("--timeline", timeline))
            if path is not None
        }
        for (one, first), (other, second) in combinations(places.items(), 2):
            if first.is_same(second):
                raise click.UsageError(f"{one} and {other} are one file: {first.path}")
        found = None if prompts is None else _status_of_prompts(prompts)
        if found is not None:
            for name, place in places.items():
                if place.is_same(found):
                    raise click.UsageError(f"--prompts and {name} are one file: {place.path}")
            if output is None and _is_standard_output(found):
                raise click.UsageError(f"--prompts and standard output are one file: {prompts}")
        return cls(places.get("--output"), places.get("--trace"))

    def lock(self, opened: ExitStack) -> None:
        """Open and lock the regular files until `opened` is closed; what they hold stays for now.

        Raises BadInputError when another process writes one of them. Where a file system has no locks, a warning says
        that nothing prevents it.
        """
        for place in (self.output, self.trace):
            if place is None or not place.regular:
                continue
            lines = opened.enter_context(OutputLines.open(place))
            if not lines.lockable:
                click.echo(
                    f"warning: {place.path} cannot be locked on this file system: make sure that no other process "
                    "writes it",
                    err=True,
                )
            self._locked[place.path] = lines

    def open_output(self, opened: ExitStack) -> OutputLines:
        """Where results go, until `opened` is closed; what a file holds is left for now."""
        return opened.enter_context(OutputLines.standard()) if self.output is None else self._open(self.output, opened)

    def open_trace(self, opened: ExitStack) -> OutputLines | None:
        """Where steps go, if anywhere; as above."""
        return None if self.trace is None else self._open(self.trace, opened)

    def _open(self, place: OutputPlace, opened: ExitStack) -> OutputLines:
        return self._locked.get(place.path) or opened.enter_context(OutputLines.open(place))


def _status_of_prompts(prompts: Path) -> os.stat_result | None:
    """None where there is nothing: reading it will say so."""
    try:
        return os.fstat(0) if prompts == STANDARD_INPUT else prompts.stat()
    except (OSError, ValueError):
        return None


def _is_standard_output(status: os.stat_result) -> bool:
    try:
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(1))
    except OSError:
        return False
