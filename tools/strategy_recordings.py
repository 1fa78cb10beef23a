"""Replay recorded decisions of published strategies, and count differences.

Usage: python -m tools.measure strategies [FILE|FOLDER]...

The recordings come from the code of FreeDave and WINO with any settings. The default is tests/reference/strategies. No
model is needed. A tie is a different choice among equally probable positions. The exit code is 1 if a decision differs,
and 2 if a recording has an unknown setting.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from tests.conformance.strategy_recordings import RECORDINGS, UnknownSettingError, counted, decisions_of_file

from lopa.bench.table import Table
from tools.report import show_report

_COUNTS = {"state": "states", "draft": "drafts", "remasked": "remasked", "tie": "ties", "different": "different"}


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(paths: tuple[Path, ...]) -> None:
    """Replay the decisions of recordings."""
    rows, different = [], 0
    for path in _files(paths or (RECORDINGS,)):
        try:
            found = counted(decisions_of_file(path))
        except UnknownSettingError as error:
            click.echo(f"{path}: {error}", err=True)
            sys.exit(2)
        different += found["different"]
        rows.append((path.name.split(".")[0], *(str(found[kind]) for kind in _COUNTS)))
    if not rows:
        click.echo("no recordings (*.jsonl.gz) found", err=True)
        sys.exit(2)
    show_report([Table("Replayed decisions", ("recording", *_COUNTS.values()), tuple(rows))])
    if different:
        sys.exit(1)


def _files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.rglob("*.jsonl.gz"))
        else:
            yield path
