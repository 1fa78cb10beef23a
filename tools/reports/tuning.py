"""Repeat `lopa-export tune` on halves of the questions, and score each choice on the other half.

Usage: python -m tools.measure tuning BUNDLE EVAL

Run N shuffles the questions by N and tunes on the first half. It then decodes the other half with the defaults and
the chosen options, question by question in turns. A choice is a loser if the lower 90 % bound shows that
it is worse there. With --new-questions, questions with other numbers join those of EVAL.
"""

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lopa.bench.eval_set import SCORED_KIND, EvalItem, eval_set_from_jsonl
from lopa.bench.progress import show_progress
from lopa.bench.table import Table
from lopa.bench.tuning.ladder import MIN_QUESTIONS, Measured
from lopa.bench.tuning.score_difference import ScoreDifference, score_difference
from lopa.bench.tuning.tuning_decodes import TuningDecodes
from lopa.bench.tuning.tuning_run import BALANCED, TuningRun
from lopa.runtime import BadInputError, Decoder
from tools.report import show_report
from tools.rules.new_questions import new_questions as made_questions


@dataclass(frozen=True)
class _Choice:
    """One tuning, and the choice on the other half of the questions."""

    config: str
    decodes: int
    seconds: float
    difference: ScoreDifference
    control_score: float
    speed: float
    """Tokens per second on the other half, in multiples of the defaults'."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("evaluation", metavar="EVAL", type=click.Path(path_type=Path))
@click.option("--tunings", type=click.IntRange(min=1), default=20, show_default=True, help="Number of tunings.")
@click.option("--new-questions", type=click.IntRange(min=0), default=0, help="Number of further questions.")
def main(bundle: Path, evaluation: Path, tunings: int, new_questions: int) -> None:
    """Tune BUNDLE several times on halves of EVAL, and judge the preset balanced on the other halves."""
    items = [item for item in eval_set_from_jsonl(evaluation) if item.kind == SCORED_KIND]
    if new_questions:
        items += made_questions(items, new_questions)
    if len(items) < 2 * MIN_QUESTIONS:
        raise BadInputError(
            f"{evaluation} has {len(items)} questions of kind {SCORED_KIND}",
            expected=f"at least {2 * MIN_QUESTIONS}, for two halves",
            remedy="add questions, or raise --new-questions",
        )
    with Decoder.open(bundle, ["cpu"], threads=1) as decoder, show_progress("tunings", tunings) as progress:
        choices = []
        for number in range(tunings):
            choices.append(_tune_and_judge(decoder, items, number))
            progress(number + 1)
    show_report([_choices_table(choices), _summary_table(choices, len(items))])


def _tune_and_judge(decoder: Decoder, items: Sequence[EvalItem], number: int) -> _Choice:
    mixed = random.Random(number).sample(list(items), len(items))
    half = mixed[: len(mixed) // 2]
    decodes = TuningDecodes(half)
    tuned = TuningRun(decoder, decodes, questions=len(half), seed=number, max_loss=0.03).run()
    chosen = next(row for row in tuned.presets if row.preset == BALANCED)
    judged = TuningDecodes(mixed[len(half) :])
    questions = range(len(mixed) - len(half))
    names = ("control", "chosen")
    for name, options in zip(names, ("defaults", chosen.config), strict=True):
        judged.add(name, decoder, decodes.sides[options].config)
    judged.measure(names, questions)
    control, own = ([judged.table[name][each] for each in questions] for name in names)
    return _Choice(
        config=chosen.config,
        decodes=decodes.count,
        seconds=decodes.seconds,
        difference=score_difference([each.score for each in own], [each.score for each in control]),
        control_score=statistics.fmean(each.score for each in control),
        speed=_speed(own) / _speed(control),
    )


def _speed(measured: Sequence[Measured]) -> float:
    return sum(each.tokens for each in measured) / sum(each.seconds for each in measured)


def _choices_table(choices: Sequence[_Choice]) -> Table:
    rows = tuple(
        (
            str(number),
            each.config,
            str(each.decodes),
            f"{each.seconds:.0f}",
            f"{100 * each.control_score:.1f}",
            f"-{each.difference.lost} +{each.difference.won}",
            f"{100 * each.difference.mean:+.1f}",
            f"{each.speed:.2f}",
        )
        for number, each in enumerate(choices)
    )
    columns = ("tuning", "chosen", "decodes", "seconds", "defaults %", "lost, won", "points", "times the defaults")
    return Table(f"Choices on {choices[0].difference.questions} other questions", columns, rows)


def _summary_table(choices: Sequence[_Choice], questions: int) -> Table:
    points = [100 * each.difference.mean for each in choices]
    rows = (
        ("questions in all", str(questions)),
        ("choices", ", ".join(f"{name} ({count})" for name, count in Counter(each.config for each in choices).items())),
        ("choices with a lower score on the other half", str(sum(each < 0 for each in points))),
        ("choices that are surely lower there", str(sum(each.difference.is_surely_lower for each in choices))),
        ("points on the other half: mean, worst", f"{statistics.fmean(points):+.1f}, {min(points):+.1f}"),
        ("speed there: median", f"{statistics.median(each.speed for each in choices):.2f}"),
        ("decodes: median", f"{statistics.median(each.decodes for each in choices):.0f}"),
        ("seconds: median", f"{statistics.median(each.seconds for each in choices):.0f}"),
    )
    return Table(f"Summary of {len(choices)} tunings", ("figure", "value"), rows)
