"""Tables of a report, printed by rich on a terminal and as Markdown otherwise."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

MISSING = "-"
"""Cell of a missing value."""
_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Table:
    """Title, column names and rows of texts. The first column has names, and the others have numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table_from_records(
    title: str, records: Iterable[_Record], columns: Mapping[str, Callable[[_Record], str]]
) -> Table:
    """Return a table with one row per record; `columns` maps a column's name to the text of its cell.

    A column in which every cell is MISSING is left out.
    """
    rows = [{name: cell(each) for name, cell in columns.items()} for each in records]
    names = [name for name in columns if not rows or any(row[name] != MISSING for row in rows)]
    return Table(title, tuple(names), tuple(tuple(row[name] for name in names) for row in rows))


def ms_text(seconds: float | None) -> str:
    """Return milliseconds with two decimals, or MISSING for None."""
    return MISSING if seconds is None else f"{seconds * 1e3:.2f}"


def ratio_text(above: float, below: float) -> str:
    """Return the quotient with two decimals."""
    return f"{above / below:.2f}"


def markdown_from_table(table: Table) -> str:
    """Return the table as aligned Markdown that ends with a newline."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (table.columns, *table.rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(table.columns))]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    drawn = [_markdown_line(line, widths) for line in (lines[0], rule, *lines[1:])]
    return "\n".join([f"{table.title}\n", *drawn]) + "\n"


def show_table(table: Table) -> None:
    """Print `table` to standard output."""
    if not sys.stdout.isatty():
        print(markdown_from_table(table))
        return
    import rich.console
    import rich.table

    drawn = rich.table.Table(title=table.title)
    for i, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if i else "left")
    for row in table.rows:
        drawn.add_row(*row)
    rich.console.Console().print(drawn)


def _markdown_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"
