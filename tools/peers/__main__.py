"""Compare our CPU forward with those of other runtimes: same random checkpoint, tokens and rows.

Usage: python -m tools.peers [prepare | measure] [--like NAME] [--layers N] [--work DIR] [--checkpoint DIR]
    [--bundle KIND=DIR].. [--side NAME].. [--threads N].. [--size BxW].. [--prefix P] [--rounds N] [--forwards N]
    [--tokens-per-forward N] [--opening together|one-by-one] [--tidy] [--output DIR] [--name NAME]

Without a command it runs both. `prepare` builds llama.cpp in --work, which takes minutes, and creates the checkpoint in
every format. It skips the peers that this machine cannot build or import. The extra `test` installs OpenVINO.

`measure` checks that every side computes the same as transformers in float32, then times the sides in alternation. It
writes NAME.json and NAME.md. A later run with the same output adds its rounds, so a long comparison can run in parts.

If two sides do not fit into memory, a round opens the sides one after another, first all int4 sides, then all int8
sides. A later run with the same output then continues where the last one stopped, until every side has --rounds rounds.
"""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from lopa.bench.forward.work import ForwardShape
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output, files_of_report
from lopa.bench.table import show_table
from lopa.runtime.errors import BadInputError, MissingBackendError
from tools.checkpoint.likeness import LIKENESSES, Likeness, shallower
from tools.cli_errors import exit_on_error
from tools.peers.free_memory import free_memory
from tools.peers.materials import BUNDLES, Materials, check_prepared, prepare_materials, remove_models
from tools.peers.measured import Peaks
from tools.peers.opening_plan import OPENINGS, OpeningPlan, plan_of_openings
from tools.peers.report import add_left_out, add_opening, add_piece, report_of_folder, tables_of_report
from tools.peers.rounds import measure_opening, measure_peaks, measure_piece, prepare_answers, setting_now
from tools.peers.sides import (
    SIDES,
    Side,
    groups_of_sides,
    needed_materials,
    sides_of_large_models,
    sides_of_sparse_models,
)
from tools.report import command_words


@dataclass(frozen=True)
class _Plan:
    """A comparison as the command line describes it."""

    materials: Materials
    likeness: Likeness
    sides: list[Side]
    opening: OpeningPlan
    threads: tuple[int, ...]
    shapes: list[ForwardShape]
    rounds: int
    forwards: int
    tokens_per_forward: float
    tidy: bool
    output: Path
    name: str

    def with_sides(self, sides: list[Side]) -> "_Plan":
        """Return the plan for some of the sides."""
        return replace(self, sides=sides)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--like",
        type=click.Choice(sorted(LIKENESSES)),
        default="dream-0.5b",
        show_default=True,
        help="Published model whose sizes the random checkpoint has.",
    ),
    click.option("--layers", type=click.IntRange(min=1), help="Number of its layers.  [default: all]"),
    click.option(
        "--work",
        type=click.Path(path_type=Path),
        help="Folder of builds, checkpoints and bundles.  [default: .peers, or .peers-NAME with another --like]",
    ),
    click.option(
        "--checkpoint",
        type=click.Path(path_type=Path),
        help="Existing checkpoint of --like's sizes.  [default: made in --work]",
    ),
    click.option(
        "--bundle", "bundles", multiple=True, help="Existing bundle of the checkpoint, as fp32, int8 or int4=DIR."
    ),
    click.option(
        "--side",
        "names",
        multiple=True,
        type=click.Choice([side.name for side in SIDES]),
        help="Sides to prepare and run.  [default: all, or all int4 and int8 sides one by one]",
    ),
    click.option(
        "--opening",
        type=click.Choice(OPENINGS),
        help="Open the sides together or one by one.  [default: together if two fit into memory]",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        multiple=True,
        help="Number of threads. Repeatable.  [default: 1 and 2]",
    ),
    click.option(
        "--size", "sizes", multiple=True, help="Branches x window. Repeatable.  [default: 1x64, 4x64 and 8x64]"
    ),
    click.option("--prefix", type=click.IntRange(min=1), help="Tokens of the prefix.  [default: 256]"),
    click.option("--rounds", type=click.IntRange(min=1), help="Timed rounds.  [default: 5]"),
    click.option(
        "--forwards",
        type=click.IntRange(min=1),
        default=2,
        show_default=True,
        help="Timed forwards of each size per opening, if the sides are opened one by one.",
    ),
    click.option(
        "--tokens-per-forward",
        type=click.FloatRange(min=0, min_open=True),
        default=4,
        show_default=True,
        help="Tokens that a forward is assumed to unmask, for the column of tokens per second.",
    ),
    click.option(
        "--tidy",
        is_flag=True,
        help="One by one: delete the models of a precision in --work when its sides are measured, to save disk space.",
    ),
    click.option(
        "--output",
        type=click.Path(path_type=Path),
        default=Path("out/peers"),
        show_default=True,
        help="Folder of the report.",
    ),
    click.option("--name", default="peers", show_default=True, help="Name of the report's files."),
)
_ONE_BY_ONE_HELP = """One by one the defaults are 2 threads, the sizes 1x32, 1x64 and 4x32, a prefix of 128 tokens
and 2 rounds."""


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(epilog=_ONE_BY_ONE_HELP)
@click.argument("part", type=click.Choice(["prepare", "measure"]), required=False)
@_with_options
def main(part: str | None, **options: Any) -> None:
    """Compare CPU forwards with other runtimes.

    PART prepare builds and exports everything that the sides need. PART measure checks and times the sides and adds the
    results to the report. Without PART both are done.
    """
    plan = _plan(**options)
    if part == "prepare":
        _prepare(plan)
    elif part == "measure" or plan.opening.together:
        _check_report(plan)
        if part is None:
            _prepare(plan)
        _measure(plan)
    else:
        _check_report(plan)
        _prepare_and_measure_by_precision(plan)
    if part != "prepare":
        for table in tables_of_report(report_of_folder(plan.output, plan.name)):
            show_table(table)


def _plan(
    like: str,
    layers: int | None,
    work: Path | None,
    checkpoint: Path | None,
    bundles: tuple[str, ...],
    names: tuple[str, ...],
    opening: str | None,
    threads: tuple[int, ...],
    sizes: tuple[str, ...],
    prefix: int | None,
    rounds: int | None,
    forwards: int,
    tokens_per_forward: float,
    tidy: bool,
    output: Path,
    name: str,
) -> _Plan:
    """Check the options and fill in the defaults."""
    likeness = LIKENESSES[like] if layers is None else shallower(LIKENESSES[like], layers)
    opened = plan_of_openings(opening, likeness.dimensions, free_memory())
    default_sides = list(SIDES) if opened.together else sides_of_large_models()
    if likeness.dimensions.moe is not None:
        default_sides = sides_of_sparse_models()
    default_work = Path(".peers" if like == "dream-0.5b" else f".peers-{like}")
    prefix = prefix or opened.prefix
    return _Plan(
        materials=Materials(work or default_work, checkpoint, _given_bundles(bundles)),
        likeness=likeness,
        sides=[side for side in SIDES if side.name in names] or default_sides,
        opening=opened,
        threads=threads or opened.threads,
        shapes=[_shape_of_size(size, prefix) for size in sizes or opened.sizes],
        rounds=rounds or opened.rounds,
        forwards=forwards,
        tokens_per_forward=tokens_per_forward,
        tidy=tidy,
        output=output,
        name=name,
    )


def _prepare(plan: _Plan) -> None:
    missing = prepare_materials(
        plan.materials,
        plan.likeness,
        needed_materials(plan.sides),
        lambda text: click.echo(text, err=True),
        renew=plan.opening.together,
        threads=max(plan.threads),
    )
    for peer, reason in missing.items():
        click.echo(f"skipped: {peer}: {reason}")


def _check_report(plan: _Plan) -> None:
    """Raise BadInputError if the report cannot be written, or if its file is foreign."""
    for path in files_of_report(plan.output, plan.name):
        check_output(path)
    report_of_folder(plan.output, plan.name)


def _prepare_and_measure_by_precision(plan: _Plan) -> None:
    """Prepare and measure the sides of one precision, then those of the next. Do nothing for measured ones."""
    for group in reversed(groups_of_sides(plan.sides)):
        part = plan.with_sides(group)
        if any(_openings_left(part, threads) for threads in plan.threads):
            _prepare(part)
            _measure(part)
        if plan.tidy:
            remove_models(plan.materials, needed_materials(group))


def _measure(plan: _Plan) -> None:
    check_prepared(plan.materials, needed_materials(plan.sides))
    command = shlex.join(command_words())
    if plan.opening.together:
        _measure_together(plan, command)
    else:
        for threads in plan.threads:
            if left := _openings_left(plan, threads):
                _measure_openings(plan, left, threads, command)


def _measure_together(plan: _Plan, command: str) -> None:
    for threads in plan.threads:
        for shape in plan.shapes:
            for group in groups_of_sides([side for side in plan.sides if side.computes_shape(shape)]):
                what = f"rounds of {group[0].precision}, {shape.branches} x {shape.window}, {threads} thread(s)"
                with show_progress(what, plan.rounds) as progress:
                    piece = measure_piece(plan.materials, group, shape, threads, plan.rounds, command, progress)
                add_piece(plan.output, plan.name, piece, plan.tokens_per_forward)


def _openings_left(plan: _Plan, threads: int) -> list[tuple[int, Side]]:
    """Return the round and side of every opening that the report lacks."""
    report = report_of_folder(plan.output, plan.name)
    done = {(each.side, each.round) for each in report.openings if each.setting.threads == threads}
    return [(turn, side) for turn in range(plan.rounds) for side in plan.sides if (side.name, turn) not in done]


def _measure_openings(plan: _Plan, left: Sequence[tuple[int, Side]], threads: int, command: str) -> None:
    peaks = _peaks(threads)
    click.echo("computing the reference's answers, unless they are kept", err=True)
    prepare_answers(plan.materials, plan.sides, plan.shapes, threads)
    left_out: set[Side] = set()
    with show_progress(f"openings with {threads} thread(s)", len(left)) as progress:
        for number, (turn, side) in enumerate(left):
            if side not in left_out:
                setting = setting_now(plan.materials, threads, command, peaks)
                try:
                    opening = measure_opening(plan.materials, side, plan.shapes, turn, plan.forwards, setting)
                except MissingBackendError as error:
                    left_out.add(side)
                    add_left_out(plan.output, plan.name, side.name, error.received)
                else:
                    add_opening(plan.output, plan.name, opening, plan.tokens_per_forward)
            progress(number + 1)


@cache
def _peaks(threads: int) -> Peaks:
    """Return the machine's rates, measured once per run and number of threads, before any side is open."""
    return measure_peaks(threads)


def _given_bundles(words: Sequence[str]) -> dict[str, Path]:
    found = {}
    for word in words:
        name, _, folder = word.partition("=")
        if name not in BUNDLES or not folder:
            raise BadInputError(
                f"invalid --bundle {word!r}", expected="fp32=DIR, int8=DIR or int4=DIR", remedy="correct it"
            )
        found[name] = Path(folder)
    return found


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
