"""Dream's schedule, compared with torch's numbers, and its draws of positions, compared with their distributions."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.params import params_of

from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import schedule
from lopa.runtime.strategy.schedule import ScheduleStep, count_of_step, drawn_in_step, next_step, noise_of_step


def counts_of(params: DecodingParams, masks: int) -> list[int]:
    """Return the number of positions that each step of a decode unmasks, without steps that unmask nothing."""
    step, counts = None, []
    while masks:
        step = next_step(step, np.arange(masks), params)
        counts.append(count_of_step(step, masks, params))
        masks -= counts[-1]
    return counts


@pytest.mark.parametrize("steps", [1, 7, 64, 257])
@pytest.mark.parametrize("masks", [1, 32, 96])
def test_counts_match_dreams_loop(steps: int, masks: int) -> None:
    torch = pytest.importorskip("torch")
    times, left, expected = torch.linspace(1, 1e-3, steps + 1), masks, []
    for number, (now, later) in enumerate(pairwise(times)):
        count = int(torch.tensor(float(left)) * (1 - later / now)) if number < steps - 1 else left
        expected.append(count)
        left -= count
    params = params_of(strategy="dream", steps=steps, max_new_tokens=8)
    assert counts_of(params, masks) == [count for count in expected if count]


def test_the_last_step_repeats_while_positions_are_masked() -> None:
    """A published loop may leave a position masked because the model proposed the mask token."""
    params = params_of(strategy="dream", steps=4, max_new_tokens=8)
    assert next_step(ScheduleStep(3), np.arange(2), params) == ScheduleStep(3)
    assert count_of_step(ScheduleStep(3), 2, params) == 2


def test_origin_unmasks_each_position_with_the_share_of_the_step() -> None:
    positions, steps = np.arange(100, 60_100), 10
    params = params_of(strategy="dream", alg="origin", steps=steps, max_new_tokens=8, seed=3)
    left = positions
    for number in range(steps):
        step = next_step(None if not number else ScheduleStep(number - 1), left, params)
        assert step.number == number
        drawn = drawn_in_step(step, left, params)
        share = 1.0 if number == steps - 1 else 0.0999 / (1 - 0.0999 * number)
        assert abs(drawn.mean() - share) < 5 * (share * (1 - share) / len(left)) ** 0.5 + 1e-9
        np.testing.assert_array_equal(
            drawn[::2], drawn_in_step(step, left[::2], params)
        )  # independent of other samples
        left = left[~drawn]
    assert not len(left)


def test_the_longest_schedule_is_not_searched_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schedule of 65536 steps with two positions once stalled every request of an engine for half a minute."""
    tables: list[int] = []
    drawn_from = schedule._uniform

    def counted(stream: int, number: int, *rest: Any) -> Any:
        tables.append(number)
        return drawn_from(stream, number, *rest)

    monkeypatch.setattr(schedule, "_uniform", counted)
    params = params_of(strategy="dream", alg="origin", steps=65536, max_new_tokens=2, seed=1)
    positions, step = np.array([7, 8]), None
    while len(positions):
        step = next_step(step, positions, params)
        positions = positions[~drawn_in_step(step, positions, params)]
    assert len(tables) < 100


def test_drawn_ranks_are_draws_without_replacement() -> None:
    """Each of three positions comes first as often as its weight, within 5 standard errors."""
    params = params_of(strategy="dream", alg_temp=1.0, max_new_tokens=8, seed=7)
    weights, draws = np.array([0.5, 0.3, 0.2]), 20_000
    noise = noise_of_step(ScheduleStep(4), np.arange(3 * draws), params).reshape(draws, 3)
    order = np.argsort(-(np.log(weights) + noise), axis=1)
    first = np.bincount(order[:, 0], minlength=3) / draws
    assert (np.abs(first - weights) < 5 * np.sqrt(weights * (1 - weights) / draws)).all()
    second = np.bincount(order[order[:, 0] == 0, 1], minlength=3) / np.count_nonzero(order[:, 0] == 0)
    assert abs(second[1] - 0.6) < 5 * (0.24 / np.count_nonzero(order[:, 0] == 0)) ** 0.5
