"""One forward of ours on the CPU beside llama.cpp, OpenVINO and torch: the same random checkpoint, tokens and rows.

Usage: python -m tools.peers [prepare | measure] [--work DIR]
    measure [--threads N].. [--size BxW].. [--prefix P] [--rounds N] [--side NAME].. [--output DIR] [--name NAME]

Without a word it does both. prepare builds llama.cpp (minutes) in --work, makes the checkpoint in every format, and
leaves out what this machine has not; OpenVINO comes with the extra `test`. measure checks that every side computes what
our float32 bundle does, then times them in turns and writes NAME.json and NAME.md; a later run with the same output
adds its rounds, so that a long comparison can be run in pieces.
"""

import itertools
import re
import shlex
from pathlib import Path

import click

from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import progress_shown
from lopa.bench.report import check_output, files_of_report
from lopa.bench.table import show_table
from lopa.runtime.errors import BadInputError
from tools.checkpoint.likeness import LIKENESSES
from tools.peers.materials import Materials, check_prepared, prepare_materials
from tools.peers.report import add_piece, report_of_folder, tables_of_report
from tools.peers.rounds import measured_piece
from tools.peers.sides import SIDES, groups_of_sides
from tools.report import command_words
from tools.shown_errors import errors_shown

_LIKE = "dream-0.5b"
_work = click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path(".peers"),
    show_default=True,
    help="What is made goes there.",
)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Prepare and measure, or one of the two."""
    if context.invoked_subcommand is None:
        context.invoke(prepare)
        context.invoke(measure)


@main.command()
@_work
def prepare(work: Path) -> None:
    """Make what the sides need; say which peers cannot be had."""
    missing = prepare_materials(Materials(work), LIKENESSES[_LIKE], lambda text: click.echo(text, err=True))
    for peer, reason in missing.items():
        click.echo(f"left out: {peer}: {reason}")


@main.command()
@_work
@click.option("--threads", type=click.IntRange(min=1), multiple=True, default=(1, 2), show_default=True)
@click.option(
    "--size", "sizes", multiple=True, default=("1x64", "4x64", "8x64"), show_default=True, help="Branches x window."
)
@click.option("--prefix", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--side", "names", multiple=True, type=click.Choice([side.name for side in SIDES]), help="Some only [default: all]."
)
@click.option("--output", type=click.Path(path_type=Path), default=Path("out/peers"), show_default=True)
@click.option("--name", default="peers", show_default=True, help="Of the files.")
def measure(
    work: Path,
    threads: tuple[int, ...],
    sizes: tuple[str, ...],
    prefix: int,
    rounds: int,
    names: tuple[str, ...],
    output: Path,
    name: str,
) -> None:
    """Check and time the sides; add what was measured to the report."""
    shapes = [_shape_of_size(size, prefix) for size in sizes]
    sides = [side for side in SIDES if not names or side.name in names]
    for path in files_of_report(output, name):
        check_output(path)
    report_of_folder(output, name)  # a file of something else is refused now
    check_prepared(Materials(work))
    command = shlex.join(command_words())
    for number, shape, group in itertools.product(threads, shapes, groups_of_sides(sides)):
        what = f"rounds of {group[0].precision}, {shape.branches} x {shape.window}, {number} thread(s)"
        with progress_shown(what, rounds) as progress:
            piece = measured_piece(Materials(work), group, shape, number, rounds, command, progress)
        add_piece(output, name, piece)
    for table in tables_of_report(report_of_folder(output, name)):
        show_table(table)


def _shape_of_size(size: str, prefix: int) -> ForwardShape:
    """The shape of "4x64", all rows wanted."""
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", size, re.ASCII)
    if found is None:
        raise BadInputError(f"--size {size!r}", expected="branches x window", remedy="e.g. --size 4x64")
    branches, window = int(found[1]), int(found[2])
    return ForwardShape(branches, window, prefix, window)


if __name__ == "__main__":
    with errors_shown():
        main()
