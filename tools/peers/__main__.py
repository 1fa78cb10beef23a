"""Compare our CPU forward with llama.cpp, OpenVINO and torch: same random checkpoint, tokens and rows.

Usage: python -m tools.peers [prepare | measure] [--work DIR]
    measure [--threads N].. [--size BxW].. [--prefix P] [--rounds N] [--side NAME].. [--output DIR] [--name NAME]

Without a command it runs both. `prepare` builds llama.cpp in --work, which takes minutes, and creates the checkpoint in
every format. It skips the peers that this machine cannot build or import. The extra `test` installs OpenVINO.

`measure` checks that every side computes the same as our float32 bundle, then times the sides in alternation. It writes
NAME.json and NAME.md. A later run with the same output adds its rounds, so a long comparison can run in parts.
"""

import itertools
import re
import shlex
from pathlib import Path

import click

from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output, files_of_report
from lopa.bench.table import show_table
from lopa.runtime.errors import BadInputError
from tools.checkpoint.likeness import LIKENESSES
from tools.cli_errors import exit_on_error
from tools.peers.materials import Materials, check_prepared, prepare_materials
from tools.peers.report import add_piece, report_of_folder, tables_of_report
from tools.peers.rounds import measure_piece
from tools.peers.sides import SIDES, groups_of_sides
from tools.report import command_words

_LIKE = "dream-0.5b"
_work = click.option(
    "--work",
    type=click.Path(path_type=Path),
    default=Path(".peers"),
    show_default=True,
    help="Folder of builds, checkpoints and bundles.",
)


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """Compare CPU forwards with other runtimes: prepare and measure, or one of them."""
    if context.invoked_subcommand is None:
        context.invoke(prepare)
        context.invoke(measure)


@main.command()
@_work
def prepare(work: Path) -> None:
    """Build and export everything that the sides need, and list unavailable peers."""
    missing = prepare_materials(Materials(work), LIKENESSES[_LIKE], lambda text: click.echo(text, err=True))
    for peer, reason in missing.items():
        click.echo(f"skipped: {peer}: {reason}")


@main.command()
@_work
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 2),
    show_default=True,
    help="Number of threads. Repeatable.",
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    default=("1x64", "4x64", "8x64"),
    show_default=True,
    help="Branches x window. Repeatable.",
)
@click.option("--prefix", type=click.IntRange(min=1), default=256, show_default=True, help="Rows of the prefix.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Timed rounds.")
@click.option(
    "--side",
    "names",
    multiple=True,
    type=click.Choice([side.name for side in SIDES]),
    help="Sides to run.  [default: all]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("out/peers"),
    show_default=True,
    help="Folder of the report.",
)
@click.option("--name", default="peers", show_default=True, help="Name of the report's files.")
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
    """Check and time the sides, and add the results to the report."""
    shapes = [_shape_of_size(size, prefix) for size in sizes]
    sides = [side for side in SIDES if not names or side.name in names]
    for path in files_of_report(output, name):
        check_output(path)
    report_of_folder(output, name)  # fail early for a foreign file
    check_prepared(Materials(work))
    command = shlex.join(command_words())
    for number, shape, group in itertools.product(threads, shapes, groups_of_sides(sides)):
        what = f"rounds of {group[0].precision}, {shape.branches} x {shape.window}, {number} thread(s)"
        with show_progress(what, rounds) as progress:
            piece = measure_piece(Materials(work), group, shape, number, rounds, command, progress)
        add_piece(output, name, piece)
    for table in tables_of_report(report_of_folder(output, name)):
        show_table(table)


def _shape_of_size(size: str, prefix: int) -> ForwardShape:
    """Return the shape of a size such as "4x64", with all positions sampled."""
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", size, re.ASCII)
    if found is None:
        raise BadInputError(f"invalid --size {size!r}", expected="branches x window", remedy="use e.g. --size 4x64")
    branches, window = int(found[1]), int(found[2])
    return ForwardShape(branches, window, prefix, window)


if __name__ == "__main__":
    with exit_on_error():
        main()
