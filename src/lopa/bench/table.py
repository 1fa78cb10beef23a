"""A table for readers: drawn by rich on a terminal, Markdown elsewhere. Knows no measurement."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A title, the names of the columns, and rows of as many texts; the first column is a name, the others numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def markdown_from_table(table: Table) -> str:
    """The table as Markdown that is also readable as it stands; ends with a line break."""
    lines = [table.columns, *table.rows]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(table.columns))]
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    drawn = [_markdown_line(table.columns, widths), _markdown_line(rule, widths)]
    drawn += [_markdown_line(row, widths) for row in table.rows]
    return "\n".join([f"{table.title}\n", *drawn]) + "\n"


def show_table(table: Table) -> None:
    """Print `table` on standard output."""
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
