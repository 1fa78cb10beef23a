"""Output of a developer program: errors without a traceback, and Markdown tables with date, machine and versions."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from lopa.bench.report import date_now, files_of_report, json_from_report, machine_line, machine_now
from lopa.bench.table import Table, markdown_from_table, show_table
from lopa.runtime.errors import LopaError
from lopa.runtime.files.output_file import write_atomically


def command_words() -> list[str]:
    """Return the arguments of the command that started this process."""
    spec = sys.modules["__main__"].__spec__
    program = sys.argv[:1] if spec is None else ["-m", spec.name.removesuffix(".__main__")]
    return ["python", *program, *sys.argv[1:]]


def show_report(tables: Sequence[Table], *, output: Path | None = None, name: str = "", record: Any = None) -> None:
    """Print `tables` and the machine. With `output`, also write them to NAME.md and `record` to NAME.json there."""
    machine = machine_line(machine_now(), date_now())
    for table in tables:
        show_table(table)
    print(machine)
    if output is not None:
        data, text = files_of_report(output, name)
        write_atomically(data, json_from_report(record))
        write_atomically(text, "\n".join([*map(markdown_from_table, tables), f"{machine}\n"]).encode())


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print a LopaError of the block to standard error, and exit with its exit code."""
    try:
        yield
    except LopaError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
