"""Compare LoPA with rules of other papers that need no training: score, tokens per forward, tokens per CPU second.

Usage: python -m tools.measure rules BUNDLE EVAL --outcomes FILE

The rules are in tools/rules. All comparisons are paired: the same questions, one thread. Decodes are kept in FILE, and
a second run decodes only what is missing there. With --new-questions it decodes questions with other numbers.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from lopa.bench.eval_set import SCORED_KIND, eval_set_from_jsonl
from lopa.bench.progress import show_progress
from lopa.bench.quality.intervals import Interval
from lopa.bench.table import Table
from lopa.runtime import BadInputError, Decoder
from tools.report import show_report
from tools.rules.comparison import (
    FOLDS,
    Cost,
    RuleComparison,
    compare,
    cpu_seconds,
    forwards,
    judged_outcomes,
    pooled,
    pooled_points,
    speed,
)
from tools.rules.configurations import ALONE, LOPA, RULES, RuleConfig, all_configs, configs_of_rule, promising_configs
from tools.rules.new_questions import new_questions as made_questions
from tools.rules.outcomes import Outcomes, RuleOutcome, RunOfRules, decode_rules


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("evaluation", metavar="EVAL", type=click.Path(path_type=Path))
@click.option("--outcomes", "kept", required=True, type=click.Path(path_type=Path), help="File of all decodes.")
@click.option("--limit", type=click.IntRange(min=FOLDS), help="Number of questions.  [default: all]")
@click.option("--new-questions", type=click.IntRange(min=FOLDS), help="Judge the promising rule on new questions.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens per answer.")
def main(
    bundle: Path, evaluation: Path, kept: Path, limit: int | None, new_questions: int | None, max_new_tokens: int
) -> None:
    """Compare rules on the questions of EVAL that are scored by number, decoded with BUNDLE on one CPU thread."""
    items = [item for item in eval_set_from_jsonl(evaluation, limit=limit) if item.kind == SCORED_KIND]
    if len(items) < FOLDS:
        raise BadInputError(
            f"{evaluation} has {len(items)} questions of kind {SCORED_KIND}",
            expected=f"at least {FOLDS}",
            remedy="add questions, or choose another file",
        )
    configs = all_configs()
    if new_questions is not None:
        items, configs = made_questions(items, new_questions), promising_configs()
    run = RunOfRules(_digest(bundle / "manifest.json"), _digest(evaluation), max_new_tokens, new_questions or 0)
    with Decoder.open(bundle, ["cpu"], threads=1) as decoder, show_progress("questions", len(items)) as progress:
        outcomes = decode_rules(decoder, items, configs, kept, run, progress)
    questions = range(len(items))
    tables = [_single_table(outcomes, configs, questions), _pooled_table(outcomes, configs, questions)]
    if new_questions is None:
        tables += [_tuned_table(outcomes, questions, *each) for each in _GOALS]
    show_report(tables)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


_GOALS: tuple[tuple[str, Cost, RuleConfig], ...] = (
    ("tokens per forward", forwards, RuleConfig(LOPA, 4, 0.9)),
    ("tokens per CPU second", cpu_seconds, RuleConfig(LOPA, 1, 0.9)),
)
"""Goals of a choice: name, cost, and the configuration whose score it must reach."""


def _single_table(outcomes: Outcomes, configs: Sequence[RuleConfig], questions: Sequence[int]) -> Table:
    """Return every configuration beside LoPA with the same branches and threshold."""
    rows = []
    for config in configs:
        beside = RuleConfig(LOPA, config.branches, 0.9 if config in ALONE else config.threshold)
        own = [outcomes[config.key][each] for each in questions]
        rows.append(
            (
                config.rule.name,
                str(config.branches),
                f"{config.threshold:g}",
                f"{100 * sum(each.right for each in own) / len(own):.1f}",
                f"{speed(own, forwards):.2f}",
                f"{speed(own, cpu_seconds):.0f}",
                *_comparison_cells(outcomes, config, beside, questions),
            )
        )
    columns = ("rule", "branches", "threshold", "score %", "tokens/forward", "tokens/CPU s", *_COLUMNS)
    return Table(f"Beside LoPA with equal branches and threshold, {len(questions)} questions", columns, tuple(rows))


_COLUMNS = ("right only here, only LoPA", "points", "tokens/forward ratio", "tokens/CPU s ratio")


def _comparison_cells(
    outcomes: Outcomes, config: RuleConfig, beside: RuleConfig, questions: Sequence[int]
) -> tuple[str, ...]:
    if config == beside:
        return ("-",) * len(_COLUMNS)
    pair = ([outcomes[each.key][question] for question in questions] for each in (config, beside))
    return _cells(*pair)


def _cells(own: Sequence[RuleOutcome], control: Sequence[RuleOutcome]) -> tuple[str, ...]:
    found = compare(own, control)
    points = 100 * (found.gained - found.lost) / found.questions
    return (
        f"+{found.gained} -{found.lost}, p {found.p:.2f}",
        f"{points:+.1f} {_interval_text(found.points, '+.1f')}",
        *_speed_cells(found),
    )


def _speed_cells(found: RuleComparison) -> tuple[str, str]:
    ratios = (found.per_forward, found.per_second)
    one, other = (f"{ratio:.3f} {_interval_text(interval, '.3f')}" for ratio, interval in ratios)
    return one, other


def _interval_text(interval: Interval, form: str) -> str:
    return f"({interval.low:{form}} to {interval.high:{form}})"


def _tuned_table(outcomes: Outcomes, questions: Sequence[int], goal: str, cost: Cost, floor: RuleConfig) -> Table:
    """Return every rule beside LoPA, each with the branches and threshold chosen on other questions."""
    control, choices = judged_outcomes(outcomes, configs_of_rule(LOPA), floor, questions, cost)
    rows = [(LOPA.name, _choices_text(choices), _score_text(control), *("-" for _ in _COLUMNS))]
    for rule in RULES:
        own, choices = judged_outcomes(outcomes, configs_of_rule(rule), floor, questions, cost)
        rows.append((rule.name, _choices_text(choices), _score_text(own), *_cells(own, control)))
    title = f"Most {goal} with at least the score of {floor.key}: chosen on {FOLDS - 1} of {FOLDS} parts, judged on 1"
    return Table(title, ("rule", "chosen: branches, threshold", "score %", *_COLUMNS), tuple(rows))


def _pooled_table(outcomes: Outcomes, configs: Sequence[RuleConfig], questions: Sequence[int]) -> Table:
    """Return every rule beside LoPA over all thresholds, for one branch and for several."""
    rows = []
    for rule in RULES:
        for name, few, many in (("1", 1, 1), ("2 to 8", 2, 8)):
            own = [each for each in configs if each.rule == rule and few <= each.branches <= many and each not in ALONE]
            if not own:
                continue
            beside = [RuleConfig(LOPA, each.branches, each.threshold) for each in own]
            points, interval = pooled_points(outcomes, own, beside, questions)
            found = compare(pooled(outcomes, own, questions), pooled(outcomes, beside, questions))
            rows.append((rule.name, name, f"{points:+.1f} {_interval_text(interval, '+.1f')}", *_speed_cells(found)))
    columns = ("rule", "branches", *_COLUMNS[1:])
    return Table(f"Beside LoPA, mean over thresholds and branches, {len(questions)} questions", columns, tuple(rows))


def _score_text(outcomes: Sequence[RuleOutcome]) -> str:
    return f"{100 * sum(each.right for each in outcomes) / len(outcomes):.1f}"


def _choices_text(choices: Sequence[RuleConfig]) -> str:
    counted = Counter((config.branches, config.threshold) for config in choices)
    return "; ".join(f"{b}, {t:g} ({n} times)" for (b, t), n in counted.most_common())
