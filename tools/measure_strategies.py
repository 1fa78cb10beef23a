"""Strategies beside each other, in as many sittings as it takes: a file of outcomes that grows, and its report.

Usage: python -m tools.measure_strategies decode BUNDLE OUTCOMES [--strategies NAMES] [--limit N] [--seconds N]
       python -m tools.measure_strategies report OUTCOMES FOLDER [--strategies NAMES] [--plot NAMES]

`decode` takes the prompts that OUTCOMES has not all of yet, each with every configuration, until so many seconds are
over; called again it goes on. With --untimed (other programs share the processor) the seconds do not count. `report`
makes of it what `lopa-export bench --quality` makes of one run: scores and tokens per forward of all prompts, tokens
per second of those that were timed.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from lopa.bench.eval_set import SCORED_KIND, EvalItem, eval_set_from_jsonl
from lopa.bench.progress import progress_shown
from lopa.bench.quality.curves import curves_from_outcomes
from lopa.bench.quality.decodes import Outcomes, results_by_prompt, shared_settings, variants_that_fit
from lopa.bench.quality.measure import Row, rows_from_outcomes
from lopa.bench.quality.outcome import Outcome, outcome_from_result
from lopa.bench.quality.plot import PER_FORWARD, PER_SECOND, png_from_quality
from lopa.bench.quality.report import QualityReport
from lopa.bench.quality.table import tables_from_quality
from lopa.bench.quality.variants import EVERY, Variant, variants_from_text
from lopa.bench.report import PromptFile, Run, make_folder, prompt_file, run_now, write_report
from lopa.bench.table import show_table
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_whole
from lopa.tiny import EVAL
from tools.shown_errors import errors_shown

NAME = "strategies"


class Sitting(msgspec.Struct, frozen=True, tag=True):
    """What a call of `decode` writes first."""

    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    """That all its configurations share."""

    @property
    def compared(self) -> tuple[object, ...]:
        """In what two sittings have to agree."""
        return self.run.bundle_sha256, self.run.device, self.prompts.sha256


class Decoded(msgspec.Struct, frozen=True, tag=True):
    """One prompt with one configuration."""

    prompt: int
    """Its place among the scored ones."""
    config: str
    timed: bool
    outcome: Outcome


Line = Sitting | Decoded


def whole_lines(path: Path) -> list[bytes]:
    """Of what `path` has so far; a last line that was cut off is left out."""
    content = path.read_bytes() if path.is_file() else b""
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def decoded_from_lines(lines: Sequence[bytes]) -> tuple[Sitting | None, dict[tuple[int, str], Decoded]]:
    """The first sitting, and what was decoded by prompt and configuration."""
    records: list[Line] = [msgspec.json.decode(line, type=Sitting | Decoded) for line in lines]
    sittings = [record for record in records if isinstance(record, Sitting)]
    found = {(record.prompt, record.config): record for record in records if isinstance(record, Decoded)}
    return (sittings[0] if sittings else None), found


def scored_items() -> list[EvalItem]:
    """The embedded prompts that are scored, in order."""
    return [item for item in eval_set_from_jsonl(EVAL) if item.kind == SCORED_KIND]


def append_outcomes(
    decoder: Decoder, path: Path, variants: Sequence[Variant], places: range, *, timed: bool
) -> Iterator[int]:
    """Decode the scored prompts at `places` that `path` has not with all `variants`; gives the number of those that it
    has, after each."""
    items = scored_items()
    lines = whole_lines(path)
    run = run_now(decoder.bundle, device=decoder.session.device, threads=1, arguments=["tools.measure_strategies"])
    sitting = Sitting(run, prompt_file(EVAL, None), shared_settings(decoder, variants))
    first, there = decoded_from_lines(lines)
    if first is not None and first.compared != sitting.compared:
        raise BadInputError(
            f"{path} has outcomes of another bundle, device or prompts: {first.compared}",
            expected=f"{sitting.compared}",
            remedy="write to another file",
        )
    left = [i for i in places if any((i, variant.name) not in there for variant in variants)]
    if not left:
        return
    results = results_by_prompt(decoder, [items[i] for i in left], variants)
    with path.open("r+b" if lines else "wb") as file:
        file.truncate(sum(map(len, lines)))
        file.seek(0, 2)
        file.write(msgspec.json.encode(sitting) + b"\n")
        for done, (place, (item, by_config)) in enumerate(zip(left, results, strict=True), start=1):
            for (variant, published), result in by_config.items():
                if not published and (place, variant.name) not in there:
                    outcome = outcome_from_result(item, result, drawn=variant.draws)
                    file.write(msgspec.json.encode(Decoded(place, variant.name, timed, outcome)) + b"\n")
            file.flush()
            yield len(places) - len(left) + done


def report_from_lines(lines: Sequence[bytes], variants: Sequence[Variant]) -> QualityReport:
    """Of the prompts that were decoded with every one of `variants`; tokens per second of those that were timed."""
    sitting, found = decoded_from_lines(lines)
    items = scored_items()
    places = [i for i in range(len(items)) if all((i, variant.name) in found for variant in variants)]
    timed = [i for i in places if all(found[i, variant.name].timed for variant in variants)]
    if sitting is None or not timed:
        raise BadInputError(
            f"{len(places)} prompts decoded with all of these configurations, none of them timed",
            expected="one at least",
            remedy="decode more, or name fewer strategies",
        )

    def of(chosen: Sequence[int]) -> tuple[list[EvalItem], Outcomes]:
        outcomes = {(each, False): [found[i, each.name].outcome for i in chosen] for each in variants}
        return [items[i] for i in chosen], outcomes

    rows = zip(rows_from_outcomes(*of(places)), rows_from_outcomes(*of(timed)), strict=True)
    return QualityReport(
        f"{len(places)} prompts, {len(timed)} of them timed",
        sitting.run,
        sitting.prompts,
        sitting.settings,
        tuple(_with_speed_of(row, other) for row, other in rows),
        curves_from_outcomes(*of(places)),
    )


def _with_speed_of(row: Row, timed: Row) -> Row:
    own = timed.default
    default = replace(
        row.default,
        seconds=own.seconds,
        tokens_per_second=own.tokens_per_second,
        tokens_per_second_interval=own.tokens_per_second_interval,
        tokens_per_second_median=own.tokens_per_second_median,
    )
    return replace(row, default=default)


@click.group()
def main() -> None:
    """Strategies beside each other, on the embedded word problems, one thread."""


_STRATEGIES = click.option("--strategies", default=EVERY, show_default=True, help="As bench --quality takes them.")


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("outcomes", type=click.Path(path_type=Path))
@_STRATEGIES
@click.option("--first", type=click.IntRange(min=0), default=0, help="Prompt.")
@click.option("--limit", type=click.IntRange(min=1), help="Prompts from there on [default: all].")
@click.option("--seconds", type=click.FloatRange(min=0), default=float("inf"), help="To begin another prompt in.")
@click.option("--untimed", is_flag=True, help="Other programs share the processor.")
def decode(
    bundle: Path, outcomes: Path, strategies: str, first: int, limit: int | None, seconds: float, untimed: bool
) -> None:
    """Go on with the file OUTCOMES."""
    begun = time.monotonic()
    every = range(len(scored_items()))[first:]
    places = every[:limit]
    with (
        errors_shown(),
        Decoder.open(bundle, threads=1) as decoder,
        progress_shown("prompts", len(places)) as progress,
    ):
        variants = variants_that_fit(decoder, variants_from_text(strategies))
        for done in append_outcomes(decoder, outcomes, variants, places, timed=not untimed):
            progress(done)
            if time.monotonic() - begun > seconds:
                break


@main.command()
@click.argument("outcomes", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@_STRATEGIES
@click.option("--plot", metavar="NAMES", help="Those of them to draw [default: all].")
def report(outcomes: Path, folder: Path, strategies: str, plot: str | None) -> None:
    """Write tables and two plots of the file OUTCOMES to FOLDER."""
    lines = whole_lines(outcomes)
    _, found = decoded_from_lines(lines)
    configs = {config for _, config in found}
    variants = [variant for variant in variants_from_text(strategies) if variant.name in configs]
    with errors_shown():
        whole = report_from_lines(lines, variants)
    tables = tables_from_quality(whole)
    make_folder(folder)
    write_report(folder, NAME, whole, tables)
    drawn = set(plot.split(",")) if plot else {variant.curve_name for variant in variants}
    shown = replace(whole, rows=tuple(row for row in whole.rows if row.curve in drawn))
    for name, speed in ((NAME, PER_FORWARD), (f"{NAME}-per-second", PER_SECOND)):
        write_whole(folder / f"{name}.png", png_from_quality(shown, speed))
    click.echo(whole.benchmark)
    for table in tables:
        show_table(table)


if __name__ == "__main__":
    main()
