"""Dream's schedule, held against torch's numbers, and its draws of positions against their distributions."""

from itertools import pairwise

import numpy as np
import pytest

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.history.schedule import ScheduleStep, count_of_step, drawn_in_step, next_step, noise_of_step


def counts_of(config: GenerationConfig, masks: int) -> list[int]:
    """What the steps of a decode decide; steps that decide nothing are left out."""
    step, counts = None, []
    while masks:
        step = next_step(step, np.arange(masks), config)
        counts.append(count_of_step(step, masks, config))
        masks -= counts[-1]
    return counts


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 16, 31, 40, 64, 100, 257, 1000])
@pytest.mark.parametrize("masks", [1, 5, 32, 64, 96, 256])
def test_counts_are_those_of_dreams_loop(steps: int, masks: int) -> None:
    torch = pytest.importorskip("torch")
    times, left, expected = torch.linspace(1, 1e-3, steps + 1), masks, []
    for number, (now, later) in enumerate(pairwise(times)):
        count = int(torch.tensor(float(left)) * (1 - later / now)) if number < steps - 1 else left
        expected.append(count)
        left -= count
    config = GenerationConfig(strategy="dream", steps=steps, max_new_tokens=8)
    assert counts_of(config, masks) == [count for count in expected if count]


def test_the_last_step_repeats_where_something_is_left() -> None:
    """A published loop may leave a position undecided: the model proposed the mask."""
    config = GenerationConfig(strategy="dream", steps=4, max_new_tokens=8)
    assert next_step(ScheduleStep(3), np.arange(2), config) == ScheduleStep(3)
    assert count_of_step(ScheduleStep(3), 2, config) == 2


def test_origin_decides_each_position_with_the_share_of_the_step() -> None:
    positions, steps = np.arange(100, 60_100), 10
    config = GenerationConfig(strategy="dream", alg="origin", steps=steps, max_new_tokens=8, seed=3)
    left = positions
    for number in range(steps):
        step = next_step(None if not number else ScheduleStep(number - 1), left, config)
        assert step.number == number
        drawn = drawn_in_step(step, left, config)
        share = 1.0 if number == steps - 1 else 0.0999 / (1 - 0.0999 * number)
        assert abs(drawn.mean() - share) < 5 * (share * (1 - share) / len(left)) ** 0.5 + 1e-9
        np.testing.assert_array_equal(drawn[::2], drawn_in_step(step, left[::2], config))  # whatever else is asked
        left = left[~drawn]
    assert not len(left)


def test_origin_skips_steps_that_draw_nothing() -> None:
    config = GenerationConfig(strategy="dream", alg="origin", steps=200, max_new_tokens=8, seed=1)
    positions, step, numbers = np.arange(50, 54), None, []
    while len(positions):
        step = next_step(step, positions, config)
        drawn = drawn_in_step(step, positions, config)
        assert drawn.any()
        numbers.append(step.number)
        positions = positions[~drawn]
    assert numbers == sorted(set(numbers))
    assert len(numbers) <= 4


def test_drawn_ranks_are_draws_without_replacement() -> None:
    """The first of three positions by weight and noise: each as often as its weight, within 5 standard errors."""
    config = GenerationConfig(strategy="dream", alg_temp=1.0, max_new_tokens=8, seed=7)
    weights, draws = np.array([0.5, 0.3, 0.2]), 20_000
    noise = noise_of_step(ScheduleStep(4), np.arange(3 * draws), config).reshape(draws, 3)
    order = np.argsort(-(np.log(weights) + noise), axis=1)
    first = np.bincount(order[:, 0], minlength=3) / draws
    assert (np.abs(first - weights) < 5 * np.sqrt(weights * (1 - weights) / draws)).all()
    second = np.bincount(order[order[:, 0] == 0, 1], minlength=3) / np.count_nonzero(order[:, 0] == 0)
    assert abs(second[1] - 0.6) < 5 * (0.24 / np.count_nonzero(order[:, 0] == 0)) ** 0.5
