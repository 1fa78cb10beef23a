"""The files of `lopa-export generate`: looked at before anything is done, opened when there is something to write."""

import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
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

    def open_output(self, opened: ExitStack) -> OutputLines:
        """Where results go, until `opened` is closed; what a file holds is left for now."""
        lines = OutputLines.standard() if self.output is None else OutputLines.open(self.output)
        return opened.enter_context(lines)

    def open_trace(self, opened: ExitStack) -> OutputLines | None:
        """Where steps go, if anywhere; as above."""
        return None if self.trace is None else opened.enter_context(OutputLines.open(self.trace))


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
