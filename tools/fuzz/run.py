"""Mutate every input that users and strangers can give to lopa-export, and check that it ends properly.

Usage: python -m tools.fuzz [--cases N] [--seed N] [--kind K]... [--jobs N] [--only "kind seed"] [--keep DIR]

tools/fuzz/README.md explains the mutations, the classes, and how to add a kind. The exit code is 1 if a case was bad.
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
from tools.fuzz.case import CLASSES, CaseOutcome, MakeCase
from tools.fuzz.material import make_bundles, material_from_bundles
from tools.fuzz.worker import CaseId, answer_of_process, run_cases
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
"""Functions that return the case of a random state, by kind."""


@click.command()
@click.option("--cases", default=1000, show_default=True, help="Total number of cases, distributed over the kinds.")
@click.option("--seed", default=0, show_default=True, help="Seed of the first case. The others follow.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Run only this kind. Repeatable.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="Number of parallel processes.")
@click.option("--only", metavar='"KIND SEED"', help="Replay one case.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the files of bad cases and of --only in this folder."
)
@click.option("--json", "lines", type=click.Path(path_type=Path), help="Write a JSON line per case to this file.")
@click.option("--bundle", type=click.Path(path_type=Path), help="Tiny bundle with two stages.  [default: create one]")
@click.option("--portable", type=click.Path(path_type=Path), help="Portable tiny bundle.  [default: create one]")
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
    """Run the cases, and print a table and the bad cases."""
    kinds = kinds or tuple(KINDS)
    all_ids = [(kinds[number % len(kinds)], seed + number // len(kinds)) for number in range(cases)]
    case_ids = [_case_from_text(only)] if only else all_ids
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place:
        if bundle is None or portable is None:
            # Tracing starts threads, which do not survive a fork, so it runs in another process.
            made = answer_of_process(lambda: [str(path) for path in make_bundles(Path(place))])
            bundle, portable = map(Path, made)
        material = material_from_bundles(bundle.resolve(), portable.resolve())
        work = (CaseId(kind, number, Path(place, "cases", f"{kind}-{number}")) for kind, number in case_ids)
        found: list[CaseOutcome] = []
        with nullcontext() if lines is None else lines.open("w", encoding="utf-8") as log:
            for outcome in run_cases(work, KINDS, material, jobs=jobs):
                found.append(outcome)
                if log is not None:
                    print(json.dumps(asdict(outcome)), file=log, flush=True)
                folder = Path(place, "cases", f"{outcome.kind}-{outcome.seed}")
                if keep and (outcome.bad or only):
                    shutil.move(folder, Path(keep, folder.name))
                shutil.rmtree(folder, ignore_errors=True)
                if len(found) % 100 == 0:
                    count = sum(each.bad for each in found)
                    click.echo(f"{len(found)} of {len(case_ids)} cases, {count} bad", err=True)
    if only:
        click.echo(json.dumps(asdict(found[0]), indent=2))
    bad = [each for each in found if each.bad]
    show_report([table_of_outcomes(found), table_of_bad_cases(bad)])
    sys.exit(1 if bad else 0)


def table_of_outcomes(found: Sequence[CaseOutcome]) -> Table:
    """Return the number of cases by kind and class."""
    counts = Counter((each.kind, each.found) for each in found)
    kinds = [kind for kind in KINDS if any(each.kind == kind for each in found)]
    numbers = {kind: [counts[kind, name] for name in CLASSES] for kind in kinds}
    numbers["all"] = [sum(column) for column in zip(*numbers.values(), strict=True)]
    rows = ((kind, str(sum(row)), *map(str, row)) for kind, row in numbers.items())
    return Table("Cases", ("kind", "cases", *CLASSES), tuple(rows))


def table_of_bad_cases(bad: Sequence[CaseOutcome]) -> Table:
    """Return the bad cases grouped by place and error, most frequent first."""
    groups: dict[tuple[str, str, str], list[CaseOutcome]] = {}
    for each in bad:
        groups.setdefault((each.found, each.error.partition(":")[0][:60], each.place), []).append(each)
    rows = []
    for (kind, error, place), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        first = min(group, key=lambda each: each.seed)
        case = f"{first.name}: {first.mutation[:100]}".replace("\n", " ")
        rows.append((kind, str(len(group)), error, place, case))
    title = "Bad cases" if bad else "No bad cases"
    return Table(title, ("class", "n", "error", "where", "first case: mutation"), tuple(rows))


def _case_from_text(text: str) -> tuple[str, int]:
    kind, _, number = text.partition(" ")
    if kind not in KINDS or not number.isdecimal():
        raise click.UsageError(f"--only {text!r}: expected a kind and a number, such as 'graph 17'")
    return kind, int(number)
