"""Paired comparisons, choices on other questions, and the file of outcomes."""

import json
from dataclasses import asdict, replace
from math import comb
from pathlib import Path

import numpy as np
import pytest
from tools.rules.comparison import (
    FOLDS,
    chosen_config,
    compare,
    cpu_seconds,
    forwards,
    judged_outcomes,
    pooled,
    pooled_points,
)
from tools.rules.configurations import LOPA, RULES, RuleConfig, all_configs, configs_of_rule
from tools.rules.outcomes import RuleOutcome, RunOfRules, outcomes_from_file

from lopa.runtime import BadInputError

SLOW, FAST, FLOOR = RuleConfig(LOPA, 1, 0.9), RuleConfig(LOPA, 2, 0.9), RuleConfig(LOPA, 4, 0.9)


def outcome(question: int, *, right: bool = True, tokens: int = 40, steps: int = 10, cpu: float = 0.1) -> RuleOutcome:
    return RuleOutcome(question, "", right, tokens, steps, cpu)


def test_a_comparison_counts_pairs() -> None:
    own = [outcome(i, right=i % 3 > 0, steps=8, cpu=0.1) for i in range(30)]
    control = [outcome(i, right=i % 5 > 0, steps=10, cpu=0.05) for i in range(30)]
    found = compare(own, control)
    assert (found.questions, found.right, found.gained, found.lost) == (30, 20, 4, 8)
    assert found.p == pytest.approx(2 * sum(comb(12, k) for k in range(5)) / 2**12)
    assert found.points.low < -100 * 4 / 30 < found.points.high
    assert found.per_forward[0] == pytest.approx(1.25)
    assert found.per_second[0] == pytest.approx(0.5)
    # With equal ratios for all questions, resampling changes nothing.
    assert found.per_forward[1].low == pytest.approx(found.per_forward[1].high)


def test_intervals_are_paired() -> None:
    """Questions differ far more than configurations do: only pairs can tell them apart."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(10, 200, 100).tolist()
    control = [outcome(i, tokens=each, steps=10) for i, each in enumerate(tokens)]
    own = [replace(each, tokens=round(1.1 * each.tokens)) for each in control]
    low, high = compare(own, control).per_forward[1].low, compare(own, control).per_forward[1].high
    assert 1.09 < low < 1.1 < high < 1.11


def outcomes_of(right: dict[RuleConfig, list[bool]]) -> dict[str, dict[int, RuleOutcome]]:
    steps = {SLOW: 20, FAST: 5, FLOOR: 10}
    return {
        config.key: {i: outcome(i, right=each, steps=steps[config]) for i, each in enumerate(found)}
        for config, found in right.items()
    }


def test_the_fastest_with_the_score_is_chosen() -> None:
    questions = range(6)
    fast = [True, True, False, False, True, True]
    right = {SLOW: [True] * 6, FAST: fast, FLOOR: [True] * 4 + [False] * 2}
    configs = (SLOW, FAST)
    assert chosen_config(outcomes_of(right), configs, FLOOR, questions, forwards) == FAST
    assert chosen_config(outcomes_of(right), configs, FLOOR, range(4), forwards) == SLOW
    none = {**right, SLOW: [False] * 6, FLOOR: [True] * 6}
    assert chosen_config(outcomes_of(none), configs, FLOOR, questions, forwards) == FAST
    assert chosen_config(outcomes_of(right), configs, FLOOR, questions, cpu_seconds) == SLOW  # equal: the first


def test_no_question_chooses_its_own_configuration() -> None:
    """FAST and FLOOR both fail once. SLOW is needed only where FLOOR's failure is judged and FAST's is not."""
    questions = range(20)
    right = {SLOW: [True] * 20, FAST: [i != 7 for i in questions], FLOOR: [i != 3 for i in questions]}
    found, choices = judged_outcomes(outcomes_of(right), (SLOW, FAST), FLOOR, questions, forwards)
    assert [each.question for each in found] == list(questions)
    assert (len(choices), choices.count(SLOW)) == (FOLDS, 1)
    assert (found[3].right, found[3].steps) == (True, 20)
    assert (found[7].right, found[7].steps) == (False, 5)


def test_pooled_configurations_count_each_question_once() -> None:
    """Two pairs that agree are no more certain than one."""
    right = {SLOW: [i % 4 > 0 for i in range(40)], FAST: [i % 3 > 0 for i in range(40)], FLOOR: [True] * 40}
    outcomes, questions = outcomes_of(right), range(40)
    once = pooled_points(outcomes, (FAST,), (SLOW,), questions)
    assert pooled_points(outcomes, (FAST, FAST), (SLOW, SLOW), questions) == once
    assert once[0] == pytest.approx(100 * (26 - 30) / 40)
    both, _ = pooled_points(outcomes, (FAST, FLOOR), (SLOW, SLOW), questions)
    assert both == pytest.approx(100 * (26 + 40 - 2 * 30) / 80)
    summed = pooled(outcomes, (SLOW, FAST), questions)
    assert {(each.tokens, each.steps) for each in summed} == {(80, 25)}
    assert [each.question for each in summed] == list(questions)


def test_rules_have_equally_many_configurations() -> None:
    assert len({len(configs_of_rule(rule)) for rule in (LOPA, *RULES)}) == 1
    keys = [config.key for config in all_configs()]
    assert len(set(keys)) == len(keys)
    assert {config for rule in (LOPA, *RULES) for config in configs_of_rule(rule)} <= set(all_configs())


RUN = RunOfRules("a", "b", 64)


def test_a_cut_file_continues(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    assert outcomes_from_file(path, RUN) == {}
    kept = replace(outcome(3), config="x")
    whole = json.dumps(asdict(RUN)) + "\n" + json.dumps(asdict(kept)) + "\n"
    path.write_text(whole + '{"question": 4, "con')
    assert outcomes_from_file(path, RUN) == {"x": {3: kept}}
    assert path.read_text() == whole
    path.write_text('{"bund')
    assert outcomes_from_file(path, RUN) == {}
    assert path.read_text() == ""


@pytest.mark.parametrize(
    "text", ["5\n", "[]\n", '{"bundle": "a"}\n', json.dumps(asdict(RUN)) + "\nnothing\n", "\xff\n"]
)
def test_other_files_are_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(BadInputError, match="holds no outcomes"):
        outcomes_from_file(path, RUN)
    assert path.read_text(encoding="latin-1") == text


def test_another_run_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text(json.dumps(asdict(replace(RUN, max_new_tokens=65))) + "\n")
    with pytest.raises(BadInputError, match="another run"):
        outcomes_from_file(path, RUN)
