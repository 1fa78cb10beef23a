"""Output of a benchmark: tables on standard output, and the files of --output and --plot."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from lopa.bench.comparison.score_plot import PLOT_FORMATS, Panel, plot_from_panels
from lopa.bench.report import check_output, files_of_report, write_report
from lopa.bench.table import Table, show_table
from lopa.cli.program.grouped_command import option
from lopa.cli.program.verbosity import quiet
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import check_replaceable, write_atomically

_Command = TypeVar("_Command", bound=Callable[..., Any])


def report_option(command: _Command) -> _Command:
    """Add -o/--output DIR, passed as `output`."""
    return option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder for the report, in JSON and Markdown.",
    )(option("--overwrite", is_flag=True, help="Replace a report in --output.")(command))


def resume_option(help_text: str) -> Callable[[_Command], _Command]:
    """Add --resume, passed as `resume`."""
    return option("--resume", is_flag=True, help=help_text)


def plot_option(help_text: str) -> Callable[[_Command], _Command]:
    """Add --plot FILE, passed as `plot`."""
    return option(
        "--plot",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"{help_text} An existing file needs --overwrite or --resume.",
    )


@dataclass(frozen=True)
class ReportOutput:
    """The files that a benchmark writes."""

    folder: Path | None
    """Folder for the report in JSON and Markdown."""
    plot: Path | None = None
    replaces: bool = False
    """True if an earlier report in the folder, and an earlier plot, may be overwritten."""
    resumes: bool | None = None
    """True if an earlier report in the folder is continued, None for a benchmark that cannot."""

    def __post_init__(self) -> None:
        if self.plot is not None and _plot_format(self.plot) not in PLOT_FORMATS:
            received = f"--plot {self.plot}: plots are PNG, SVG or PDF, not {self.plot.suffix}"
            raise click.UsageError(f"{received}: name the file {self.plot.stem}.png")
        if self.resumes and self.folder is None:
            raise click.UsageError("--resume needs --output, the folder of the outcomes")
        if self.resumes and self.replaces:
            raise click.UsageError("--resume keeps the outcomes that --overwrite replaces: give one of the two")

    def check(self, name: str) -> None:
        """Create the folder of the report `name`, but not that of the plot.

        Raises BadInputError for a file that is not writable, and for an earlier report or plot that may not be
        replaced. Call this after reading all input and before the measurement, so that no measurement is lost.
        """
        keeps = not (self.replaces or self.resumes)
        if self.plot is not None:
            place = check_replaceable(self.plot)
            if keeps and place.regular and place.status is not None:
                raise BadInputError(
                    f"--plot {self.plot} exists", expected="a new file", remedy="choose another --plot, or --overwrite"
                )
        if self.folder is None:
            return
        files = files_of_report(self.folder, name)
        names = (*(file.name for file in files), f"{name}.outcomes.jsonl")
        earlier = [each for each in names if (self.folder / each).is_file()]
        if earlier and keeps:
            raise BadInputError(
                f"{self.folder} holds an earlier report: {', '.join(earlier)}",
                expected=f"a folder without a report of {name}",
                remedy=f"choose another --output{', --resume' if self.resumes is not None else ''} or --overwrite",
            )
        for path in files:
            check_output(path)

    def write(
        self, name: str, report: Any, tables: Sequence[Table], panels: Callable[[], Sequence[Panel]] | None = None
    ) -> None:
        """Print the tables, write the files and name them."""
        for table in tables:
            show_table(table)
        files: list[Path] = []
        if self.folder is not None:
            write_report(self.folder, name, report, tables)
            files += sorted(self.folder.glob(f"{name}.*"))
        if self.plot is not None and panels is not None:
            write_atomically(self.plot, plot_from_panels(panels(), _plot_format(self.plot)))
            files.append(self.plot)
        for path in files:
            note(f"wrote {path}")


def _plot_format(path: Path) -> str:
    return path.suffix.lower().removeprefix(".") or PLOT_FORMATS[0]


def note(text: str) -> None:
    """Print a line on standard error unless --quiet is given."""
    if not quiet():
        click.echo(text, err=True)


def command_line() -> list[str]:
    """Return the arguments of this process, with the program's name instead of its path."""
    return ["lopa-export", *sys.argv[1:]]
