"""What a benchmark over HTTP found, and its tables. Measures nothing."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lopa.bench.report import PromptFile, Run
from lopa.bench.table import Table
from tools.serving.runs import Form, LoadRun


@dataclass(frozen=True)
class Pair:
    """The same load over HTTP and in process, once each, one right after the other."""

    http: LoadRun
    engine: LoadRun


@dataclass(frozen=True)
class Measured:
    """All pairs of one load."""

    form: Form
    clients: int
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class LoadReport:
    """All loads."""

    run: Run
    prompts: PromptFile
    requests: int
    """Of each run of a load."""
    slots: int
    branches: int
    max_tokens: int
    measured: tuple[Measured, ...]


def tables_of_report(report: LoadReport) -> list[Table]:
    """For each form what clients see, then for all forms what HTTP costs."""
    forms = list(dict.fromkeys(each.form for each in report.measured))
    return [*(_seen(report, form) for form in forms), _cost(report)]


def outside_share(pair: Pair) -> float:
    """Of the time per token over HTTP, the share that the same requests in process do without; below 0: none."""
    return 1 - _per_token(pair.engine.wall, pair.engine) / _per_token(pair.http.wall, pair.http)


def between_rounds(run: LoadRun) -> float:
    """The share of the time in which no round ran."""
    return 1 - run.in_rounds / run.wall


def _seen(report: LoadReport, form: Form) -> Table:
    """Latencies are of all answers of all rounds; the rest are medians over rounds."""
    rows = []
    for each in (each for each in report.measured if each.form == form):
        http, engine = [pair.http for pair in each.pairs], [pair.engine for pair in each.pairs]
        rows.append(
            (
                str(each.clients),
                f"{_median(http, lambda run: report.requests / run.wall):.1f}",
                f"{_median(http, lambda run: run.tokens / run.wall):.0f}",
                f"{statistics.median(_rate(pair.http) / _rate(pair.engine) for pair in each.pairs):.2f}",
                f"{_median(http, lambda run: run.tokens / run.steps):.2f}",
                *(_latencies(runs, part) for part in ("first_text", "whole") for runs in (http, engine)),
            )
        )
    return Table(
        f"Answers {form}: {report.requests} requests, {report.slots} slots, {report.branches} branch(es), "
        f"at most {report.max_tokens} tokens. First text and whole answer: ms at 50 % / 99 % of all answers",
        (
            "clients",
            "requests/s",
            "tokens/s",
            "of the engine's",
            "tokens per forward",
            "first text",
            "of the engine",
            "whole answer",
            "of the engine",
        ),
        tuple(rows),
    )


def _cost(report: LoadReport) -> Table:
    rows = []
    for each in report.measured:
        http, engine = [pair.http for pair in each.pairs], [pair.engine for pair in each.pairs]
        shares = sorted(outside_share(pair) for pair in each.pairs)
        rows.append(
            (
                f"{each.form}, {each.clients}",
                f"{_median(http, lambda run: 1000 * run.wall / run.rounds):.1f}",
                f"{_median(engine, lambda run: 1000 * run.wall / run.rounds):.1f}",
                f"{_median(http, between_rounds):.1%}",
                f"{_median(engine, between_rounds):.1%}",
                f"{statistics.median(shares):.1%} ({shares[0]:.1%} to {shares[-1]:.1%})",
                f"{statistics.median(_processor_share(pair) for pair in each.pairs):.1%}",
            )
        )
    return Table(
        "What HTTP costs. Outside: of the time per token over HTTP what the engine alone does without",
        (
            "answers, clients",
            "ms per round",
            "of the engine",
            "between rounds",
            "of the engine",
            "outside, wall (least to most)",
            "outside, processor",
        ),
        tuple(rows),
    )


def _median(runs: Sequence[LoadRun], value: Callable[[LoadRun], float]) -> float:
    return statistics.median(map(value, runs))


def _rate(run: LoadRun) -> float:
    return run.tokens / run.wall


def _per_token(seconds: float, run: LoadRun) -> float:
    return seconds / run.tokens


def _processor_share(pair: Pair) -> float:
    return 1 - _per_token(pair.engine.processor, pair.engine) / _per_token(pair.http.processor, pair.http)


def _latencies(runs: Sequence[LoadRun], part: str) -> str:
    seconds = [each for run in runs for each in getattr(run, part)]
    if not seconds:
        return "-"
    return " / ".join(f"{1000 * value:.0f}" for value in np.percentile(seconds, (50, 99)))
