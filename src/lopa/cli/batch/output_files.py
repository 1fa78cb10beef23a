"""Output files of `lopa-export generate`. They are checked and locked first, and emptied before the first line.

A FIFO or a device is opened just before the first line, since opening a FIFO waits for its reader.
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
from lopa.runtime.files.output_file import OutputLines, OutputPlace, inspect_output_path


@dataclass(frozen=True)
class OutputFiles:
    """Destinations of results and steps."""

    output: OutputPlace | None
    """Destination of results, or None for standard output."""
    step_log: OutputPlace | None
    _locked: dict[Path, OutputLines] = field(default_factory=dict)
    """Open regular files by path, filled by `lock`."""

    @classmethod
    def from_options(cls, prompts: Path | None, output: Path | None, step_log: Path | None) -> Self:
        """Check the paths and change no file.

        Raises BadInputError for a path that cannot be written and UsageError for two options with the same file.
        """
        places = {
            name: inspect_output_path(path)
            for name, path in (("--output", output), ("--step-log", step_log))
            if path is not None
        }
        for (one, first), (other, second) in combinations(places.items(), 2):
            if first.is_same(second):
                raise click.UsageError(f"{one} and {other} are the same file: {first.path}")
        found = None if prompts is None else _status_of_prompts(prompts)
        if found is not None:
            for name, place in places.items():
                if place.is_same(found):
                    raise click.UsageError(f"--prompts and {name} are the same file: {place.path}")
            if output is None and _is_standard_output(found):
                raise click.UsageError(f"--prompts and standard output are the same file: {prompts}")
        return cls(places.get("--output"), places.get("--step-log"))

    def lock(self, opened: ExitStack) -> None:
        """Open and lock the regular files until `opened` is closed, without changing their content.

        Raises BadInputError when another process writes one of them. Prints a warning on a file system without locks.
        """
        for place in (self.output, self.step_log):
            if place is None or not place.regular:
                continue
            lines = opened.enter_context(OutputLines.open(place))
            if not lines.lockable:
                click.echo(
                    f"warning: this file system has no locks: make sure that no other process writes {place.path}",
                    err=True,
                )
            self._locked[place.path] = lines

    def open_output(self, opened: ExitStack) -> OutputLines:
        """Open the destination of results until `opened` is closed, without changing a file's content."""
        return opened.enter_context(OutputLines.standard()) if self.output is None else self._open(self.output, opened)

    def open_step_log(self, opened: ExitStack) -> OutputLines | None:
        """Open the destination of steps until `opened` is closed. Return None without a step log."""
        return None if self.step_log is None else self._open(self.step_log, opened)

    def _open(self, place: OutputPlace, opened: ExitStack) -> OutputLines:
        return self._locked.get(place.path) or opened.enter_context(OutputLines.open(place))


def _status_of_prompts(prompts: Path) -> os.stat_result | None:
    """Return the status of the file, or None if it is missing. Reading it later reports the error."""
    try:
        return os.fstat(0) if prompts == STANDARD_INPUT else prompts.stat()
    except (OSError, ValueError):
        return None


def _is_standard_output(status: os.stat_result) -> bool:
    try:
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(1))
    except OSError:
        return False
