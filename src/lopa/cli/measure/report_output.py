"""Where a benchmark of lopa-export bench puts what it found: tables on standard output, files if that is asked for."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.bench.report import check_output, files_of_report, write_report
from lopa.bench.table import Table, show_table
from lopa.runtime.files.output_file import write_whole


@dataclass(frozen=True)
class ReportOutput:
    """The files that a benchmark writes."""

    folder: Path | None
    """Of --output, for the report in JSON and Markdown."""
    plot: Path | None = None

    def check(self, name: str) -> None:
        """Make the folders of the report `name` and the plot; raises BadInputError for a file that cannot be written.

        To be called before the measurement, so that it is not made in vain, and after all input is read.
        """
        files = () if self.folder is None else files_of_report(self.folder, name)
        for path in (*files, *(() if self.plot is None else (self.plot,))):
            check_output(path)

    def put(
        self, name: str, report: Any, tables: Sequence[Table], png_from_report: Callable[[Any], bytes] | None = None
    ) -> None:
        """Print the tables and write the files."""
        for table in tables:
            show_table(table)
        if self.folder is not None:
            write_report(self.folder, name, report, tables)
        if self.plot is not None and png_from_report is not None:
            write_whole(self.plot, png_from_report(report))


def command_line() -> list[str]:
    """The words of the command, without the folder of the program."""
    return ["lopa-export", *sys.argv[1:]]
