"""Output of a benchmark: tables on standard output, and the files of --output and --plot."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from lopa.bench.report import check_output, files_of_report, write_report
from lopa.bench.table import Table, show_table
from lopa.cli.program.grouped_command import option
from lopa.cli.program.verbosity import quiet
from lopa.runtime.files.output_file import write_atomically

_Command = TypeVar("_Command", bound=Callable[..., Any])


def report_option(command: _Command) -> _Command:
    """Add -o/--output DIR, passed as `output`."""
    return option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder for the report, in JSON and Markdown.",
    )(command)


@dataclass(frozen=True)
class ReportOutput:
    """The files that a benchmark writes."""

    folder: Path | None
    """Folder for the report in JSON and Markdown."""
    plot: Path | None = None

    def check(self, name: str) -> None:
        """Create the folders of the report `name` and of the plot.

        Raises BadInputError for a file that is not writable. Call this after reading all input and before the
        measurement, so that no measurement is lost.
        """
        files = () if self.folder is None else files_of_report(self.folder, name)
        for path in (*files, *(() if self.plot is None else (self.plot,))):
            check_output(path)

    def write(
        self, name: str, report: Any, tables: Sequence[Table], png_from_report: Callable[[Any], bytes] | None = None
    ) -> None:
        """Print the tables and write the files."""
        for table in tables:
            show_table(table)
        if self.folder is not None:
            write_report(self.folder, name, report, tables)
        if self.plot is not None and png_from_report is not None:
            write_atomically(self.plot, png_from_report(report))


def note(text: str) -> None:
    """Print a line on standard error unless --quiet is given."""
    if not quiet():
        click.echo(text, err=True)


def command_line() -> list[str]:
    """Return the arguments of this process, with the program's name instead of its path."""
    return ["lopa-export", *sys.argv[1:]]
