"""Share of missing steps that a bundle fills correctly, from both sides and from the left side only.

Usage: python -m tools.measure infill BUNDLE [--problems N] [--seed N]

BUNDLE is exported from a checkpoint of `python -m tools.infill.train`, and the problems are held out from its training.
A step is correct if it is one sentence whose equation is the removed one. Its result alone may be correct too, because
the text behind the hole begins with it. Without the right side, the same model continues the text on the left, and its
first sentence counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lopa.bench.quality.intervals import Interval, interval_of_ratio, score_from_count
from lopa.bench.table import MISSING, Table
from lopa.runtime.decoder import Decoder
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.text_with_holes import Hole, text_with_holes
from tools.cli_errors import exit_on_error
from tools.infill.problems import Problem, first_sentence, held_out_problems
from tools.report import show_report

_TOKENS = 24
"""Tokens of a hole, and of a continuation. The longest step has 22."""
_THRESHOLD: Mapping[str, Any] = {"strategy": "threshold", "skip_threshold": 0.9, "confidence": "probability"}
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "threshold": _THRESHOLD,
    "lopa, 1 branch": {"strategy": "lopa", "branches": 1},
    "lopa, 4 branches": {"strategy": "lopa", "branches": 4},
    "lopa, 8 branches": {"strategy": "lopa", "branches": 8},
}
_RANGE, _RANGE_NAME = (6, 18), "threshold, hole of 6 to 18 tokens"
"""Range of a hole whose length the first forward chooses."""
_KINDS = {True: "in the question", False: "only behind the hole"}
"""Place of the missing step's number in the text, by `is_given`."""


@dataclass(frozen=True)
class Filled:
    """The result of one hole."""

    is_correct: bool
    has_result: bool
    """True if the equation's result is correct, whatever its operands are."""
    tokens: int
    """Tokens of the hole and its edges. Ends of text in the hole count."""
    steps: int


def fill_from_both_sides(
    decoder: Decoder, problems: Sequence[Problem], options: Mapping[str, Any], hole: Hole | None = None
) -> list[Filled]:
    """Fill the missing step of each problem with a hole of _TOKENS tokens, or another `hole`."""
    prompts = [text_with_holes([each.before, hole or Hole(_TOKENS), each.after]) for each in problems]
    results = decoder.generate(prompts, **options)
    found = []
    for problem, result in zip(problems, results, strict=True):
        assert result.holes is not None  # the prompts have holes
        found.append(_filled(problem, result.holes[0], result))
    return found


def continue_from_left(decoder: Decoder, problems: Sequence[Problem], options: Mapping[str, Any]) -> list[Filled]:
    """Continue the text before each missing step. Only the first sentence counts."""
    results = decoder.generate([each.before for each in problems], max_new_tokens=_TOKENS, **options)
    return [
        _filled(problem, first_sentence(result.text), result) for problem, result in zip(problems, results, strict=True)
    ]


def _filled(problem: Problem, text: str, result: GenerationResult) -> Filled:
    return Filled(problem.is_filled_by(text), problem.has_result_in(text), result.tokens, result.steps)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--problems", "count", type=click.IntRange(min=2), default=200, show_default=True, help="Problems of each kind."
)
@click.option("--seed", default=1, show_default=True, help="Seed of the problems.")
def main(bundle: Path, count: int, seed: int) -> None:
    """Fill missing steps of held-out problems with BUNDLE on one thread."""
    problems = {is_given: held_out_problems(count, seed, is_given=is_given) for is_given in _KINDS}
    with exit_on_error(), Decoder.open(bundle, threads=1) as decoder:
        both = {
            name: {is_given: fill_from_both_sides(decoder, problems[is_given], options) for is_given in _KINDS}
            for name, options in _SETTINGS.items()
        }
        both[_RANGE_NAME] = {
            is_given: fill_from_both_sides(decoder, problems[is_given], _THRESHOLD, Hole(*_RANGE))
            for is_given in _KINDS
        }
        left = {is_given: continue_from_left(decoder, problems[is_given], _THRESHOLD) for is_given in _KINDS}
    sides = [
        (kind, side, *_cells(found[is_given]))
        for is_given, kind in _KINDS.items()
        for side, found in (("both sides", both["threshold"]), ("left side only", left))
    ]
    settings = [(name, *_cells([*found[True], *found[False]])) for name, found in both.items()]
    figures = ("correct steps, %", "correct results, %", "forwards per hole", "tokens per forward")
    show_report(
        [
            Table(
                f"{count} held-out problems of each kind, holes of {_TOKENS} tokens, threshold 0.9, 95 % intervals",
                ("number of the missing step", "text", *figures),
                tuple(sides),
            ),
            Table(f"Both sides, {2 * count} problems", ("setting", *figures), tuple(settings)),
        ]
    )


def _cells(found: Sequence[Filled]) -> tuple[str, ...]:
    tokens, steps = [each.tokens for each in found], [each.steps for each in found]
    return (
        _share([each.is_correct for each in found]),
        _share([each.has_result for each in found]),
        _ratio(steps, [1] * len(found), digits=1),
        _ratio(tokens, steps, digits=2),
    )


def _share(verdicts: Sequence[bool]) -> str:
    score = score_from_count(sum(verdicts), len(verdicts))
    return f"{100 * score.share:.1f} ({100 * score.low:.0f}-{100 * score.high:.0f})"


def _ratio(above: Sequence[int], below: Sequence[int], *, digits: int) -> str:
    interval: Interval | None = interval_of_ratio(above, below)
    if interval is None:
        return MISSING
    return f"{sum(above) / sum(below):.{digits}f} ({interval.low:.{digits}f}-{interval.high:.{digits}f})"
