"""The ladder on tables whose scores and speeds are known: what it chooses, what it asks, and when it stops."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from lopa.bench.comparison.decodes import Outcomes
from lopa.bench.comparison.ladder import MIN_GAIN, PILOT_QUESTIONS, Ladder, verdict_from_difference
from lopa.bench.comparison.outcomes import DecodeOutcome
from lopa.bench.comparison.paired_statistics import score_difference

CONTROL = "control"


def answer(score: float, tokens: int, seconds: float) -> DecodeOutcome:
    return DecodeOutcome(score, steps=1, tokens=tokens, generated_positions=tokens, seconds=seconds)


class KnownTable:
    """All answers of all configurations, shown only when the ladder measures them."""

    def __init__(self, answers: dict[str, list[DecodeOutcome]], limit: int = 10**9) -> None:
        self.answers, self.limit = answers, limit
        self.table: Outcomes = {name: {} for name in answers}

    def measure(self, names: Sequence[str], questions: Sequence[int]) -> bool:
        for number in questions:
            for name in names:
                if number not in self.table[name]:
                    if self.count >= self.limit:
                        return False
                    self.table[name][number] = self.answers[name][number]
        return True

    @property
    def count(self) -> int:
        return sum(map(len, self.table.values()))

    def ladder(self, max_loss: float = 0.03) -> Ladder:
        questions = random.Random(1).sample(range(len(self.answers[CONTROL])), len(self.answers[CONTROL]))
        return Ladder(self.measure, self.table, CONTROL, questions, max_loss=max_loss)


def answers(share: float, speed: float, count: int = 200, seed: int = 0) -> list[DecodeOutcome]:
    """Return answers of which `share` are right, on average, at `speed` tokens per second."""
    rng = np.random.default_rng(seed)
    return [answer(float(right), 100, 100 / speed) for right in rng.random(count) < share]


def test_the_fastest_configuration_that_is_not_lower_is_chosen() -> None:
    known = KnownTable(
        {
            CONTROL: answers(0.6, 100, seed=1),
            "wrong": answers(0.1, 400, seed=2),
            "better": answers(0.9, 200, seed=3),
            "best but slower": answers(0.99, 150, seed=4),
            "slow": answers(1.0, 50, seed=5),
        }
    )
    ladder = known.ladder()
    assert ladder.climb([name for name in known.answers if name != CONTROL])
    assert (ladder.balanced, ladder.fast) == ("better", "better")
    assert [(rung.name, rung.verdict) for rung in ladder.rungs] == [("wrong", "lower"), ("better", "not lower")]
    asked = {name: len(rows) for name, rows in known.table.items()}
    assert asked["best but slower"] == PILOT_QUESTIONS  # slower than the chosen one
    assert asked["slow"] == 2  # out of the pilot
    assert asked["wrong"] < 40
    assert asked["better"] == asked[CONTROL] == 200


def test_fast_may_lose_the_allowed_points_and_balanced_none() -> None:
    control = answers(0.8, 100, 1000, seed=1)
    worse = [answer((each.score or 0.0) if number % 100 else 0.0, 100, 0.4) for number, each in enumerate(control)]
    equal = [answer(each.score or 0.0, 100, 0.5) for each in control]
    known = KnownTable({CONTROL: control, "worse": worse, "equal": equal})
    ladder = known.ladder(max_loss=0.03)
    assert ladder.climb(["worse", "equal"])
    assert (ladder.fast, ladder.balanced) in (("worse", "equal"), ("equal", "equal"))
    assert ladder.difference("worse").mean == pytest.approx(-0.01, abs=0.005)
    strict = KnownTable(known.answers).ladder(max_loss=0.0)
    assert strict.climb(["worse", "equal"])
    assert strict.fast == "equal"


def test_nothing_is_chosen_that_is_hardly_faster_or_hardly_proven() -> None:
    control = answers(0.7, 100, seed=1)
    known = KnownTable(
        {
            CONTROL: control,
            "same speed": [answer(1.0, 100, 1 / (MIN_GAIN - 0.01)) for _ in control],
            "other answers": answers(0.7, 200, seed=9),
        }
    )
    ladder = known.ladder(max_loss=0.0)
    assert ladder.climb(["same speed", "other answers"])
    assert ladder.balanced is None
    assert [rung.name for rung in ladder.rungs] == ["other answers"]


@pytest.mark.parametrize("limit", [5, 60, 230])
def test_without_time_an_unfinished_configuration_is_not_chosen(limit: int) -> None:
    known = KnownTable({CONTROL: answers(0.5, 100), "a": answers(1.0, 200), "b": answers(1.0, 180)}, limit)
    ladder = known.ladder()
    assert not ladder.climb(["a", "b"])
    assert ladder.balanced is None
    assert all(rung.verdict == "unfinished" for rung in ladder.rungs)


@pytest.mark.parametrize(
    ("own", "control", "verdict"),
    [
        ([1.0] * 40, [1.0] * 40, "not lower"),
        ([1.0] * 40, [0.0] * 4 + [1.0] * 36, "not lower"),
        ([0.0] * 10 + [1.0] * 30, [1.0] * 40, "lower"),
        ([0.0] * 2 + [1.0] * 198, [1.0] * 200, "within the limit"),
        ([0.0, 1.0] * 20, [1.0, 0.0] * 20, "not proven"),
    ],
)
def test_verdicts(own: list[float], control: list[float], verdict: str) -> None:
    assert verdict_from_difference(score_difference(own, control), 0.03) == verdict


def test_a_later_list_replaces_the_choice_only_by_something_faster() -> None:
    control = answers(0.5, 100, seed=1)
    right = {name: [answer(1.0, 100, 100 / speed) for _ in control] for name, speed in (("a", 150), ("b", 140))}
    known = KnownTable({CONTROL: control, **right, "c": [answer(1.0, 100, 0.5) for _ in control]})
    ladder = known.ladder()
    assert ladder.climb(["a"])
    assert ladder.climb(["b"])
    assert ladder.balanced == "a"
    assert ladder.climb(["c"])
    assert ladder.balanced == "c"
