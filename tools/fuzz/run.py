"""Mutates everything that a user or a stranger can hand to lopa-export, and sees that it ends properly.

Usage: python -m tools.fuzz [--cases N] [--seed N] [--kind K]... [--jobs N] [--only "kind seed"] [--keep DIR]

tools/fuzz/README.md says what is mutated, what the classes mean and how a kind is added. Exit code 1 when a case was
bad.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from lopa.bench.table import Table
from tools.fuzz import bundles, checkpoints, grammars, http, requests, tokenizers, writers
from tools.fuzz.case import CLASSES, MakeCase, Outcome
from tools.fuzz.material import bundles_made, material_from_bundles
from tools.fuzz.worker import Asked, answer_in_a_process, outcomes
from tools.report import show_report

KINDS: dict[str, MakeCase] = {
    "manifest": bundles.manifest_case,
    "dimensions": bundles.dimensions_case,
    "graph": bundles.graph_case,
    "weights": bundles.weights_case,
    "links": bundles.links_case,
    "costs": bundles.costs_case,
    "buckets": bundles.buckets_case,
    "engine": bundles.engine_case,
    "tokenizer": tokenizers.tokenizer_case,
    "grammar": grammars.grammar_case,
    "chains": tokenizers.chains_case,
    "template": requests.template_case,
    "checkpoint": checkpoints.checkpoint_case,
    "lines": requests.lines_case,
    "config": requests.config_case,
    "prompt": requests.prompt_case,
    "command": requests.command_case,
    "writers": writers.writers_case,
    "http": http.http_case,
}
"""A kind is a function that makes the case of a random state."""


@click.command()
@click.option("--cases", default=1000, show_default=True, help="In all, dealt over the kinds.")
@click.option("--seed", default=0, show_default=True, help="The first case's; the others follow.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only this one. Repeatable.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="Processes at a time.")
@click.option("--only", metavar='"KIND SEED"', help="One case, again.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the files of bad cases, and of --only, in DIR.")
@click.option("--json", "lines", type=click.Path(path_type=Path), help="Write a line of JSON for every case to FILE.")
@click.option("--bundle", type=click.Path(path_type=Path), help="A tiny bundle with two stages [default: one is made].")
@click.option("--portable", type=click.Path(path_type=Path), help="A portable one [default: one is made].")
def main(
    cases: int,
    seed: int,
    kinds: tuple[str, ...],
    jobs: int,
    only: str | None,
    keep: Path | None,
    lines: Path | None,
    bundle: Path | None,
    portable: Path | None,
) -> None:
    """Run the cases, show the table and every bad case."""
    kinds = kinds or tuple(KINDS)
    dealt = [(kinds[number % len(kinds)], seed + number // len(kinds)) for number in range(cases)]
    asked = [_named(only)] if only else dealt
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        if bundle is None or portable is None:
            # In a process of its own: tracing starts threads, which forks of this one would not have.
            made = answer_in_a_process(lambda: [str(path) for path in bundles_made(Path(place))])
            bundle, portable = map(Path, made)
        material = material_from_bundles(bundle.resolve(), portable.resolve())
        work = (Asked(kind, number, Path(place, "cases", f"{kind}-{number}")) for kind, number in asked)
        found: list[Outcome] = []
        with nullcontext() if lines is None else lines.open("w", encoding="utf-8") as log:
            for outcome in outcomes(work, KINDS, material, jobs=jobs):
                found.append(outcome)
                if log is not None:
                    print(json.dumps(asdict(outcome)), file=log, flush=True)
                folder = Path(place, "cases", f"{outcome.kind}-{outcome.seed}")
                if keep and (outcome.bad or only):
                    shutil.move(folder, Path(keep, folder.name))
                shutil.rmtree(folder, ignore_errors=True)
                if len(found) % 100 == 0:
                    count = sum(each.bad for each in found)
                    click.echo(f"{len(found)} of {len(asked)} cases, {count} bad", err=True)
    if only:
        click.echo(json.dumps(asdict(found[0]), indent=2))
    bad = [each for each in found if each.bad]
    show_report([table_of_outcomes(found), table_of_bad_cases(bad)])
    sys.exit(1 if bad else 0)


def table_of_outcomes(found: Sequence[Outcome]) -> Table:
    """Return the number of cases by kind and class."""
    counts = Counter((each.kind, each.found) for each in found)
    kinds = [kind for kind in KINDS if any(each.kind == kind for each in found)]
    numbers = {kind: [counts[kind, name] for name in CLASSES] for kind in kinds}
    numbers["all"] = [sum(column) for column in zip(*numbers.values(), strict=True)]
    rows = ((kind, str(sum(row)), *map(str, row)) for kind, row in numbers.items())
    return Table("Cases", ("kind", "cases", *CLASSES), tuple(rows))


def table_of_bad_cases(bad: Sequence[Outcome]) -> Table:
    """Return the bad cases, those of one place and error together, the most frequent first."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for each in bad:
        groups.setdefault((each.found, each.error.partition(":")[0][:60], each.place), []).append(each)
    rows = []
    for (kind, error, place), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = min(group, key=lambda each: each.seed)
        case = f"{first.name}: {first.mutation[:100]}".replace("\n", " ")
        rows.append((kind, str(len(group)), error, place, case))
    title = "Bad cases" if bad else "no bad case"
    return Table(title, ("class", "n", "error", "where", "first case: mutation"), tuple(rows))


def _named(text: str) -> tuple[str, int]:
    kind, _, number = text.partition(" ")
    if kind not in KINDS or not number.isdecimal():
        raise click.UsageError(f"--only {text!r}: expected a kind and a number, such as 'graph 17'")
    return kind, int(number)
