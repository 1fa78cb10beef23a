"""The number of positions that a step unmasks and their choice, compared with plain versions of the rules."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.params import params_of
from tests.runtime.strategy.blocks import unmasked_of, view_of

from lopa.runtime.contract import Bool, Float32, Floats
from lopa.runtime.strategy import BlockView, Candidates


def block_of(
    p: Float32, confidences: Float32, masked: Bool, *, fully_activated: bool = True, rounds: int = 0
) -> BlockView:
    candidates = Candidates(np.arange(len(p)), p, confidences)
    return view_of(np.arange(len(p)), candidates, masked, fully_activated=fully_activated, rounds=rounds)


def chosen(block: BlockView, **options: Any) -> list[int]:
    return unmasked_of(block, params_of(**options))


@pytest.mark.parametrize(
    ("size", "steps", "expected"),
    [(8, None, [1, 1, 1]), (8, 4, [2, 2, 2, 2]), (8, 3, [3, 3, 2]), (4, 4, [1, 1, 1, 1]), (7, 5, [2, 2, 1, 1, 1])],
)
def test_steps_are_equal_with_the_remainder_first(size: int, steps: int | None, expected: list[int]) -> None:
    p = np.full(size, 0.5, np.float32)

    def count_in(rounds: int) -> int:
        block = block_of(p, p, np.ones(size, bool), rounds=rounds)
        return len(chosen(block, strategy="vanilla", block_size=size, block_steps=steps))

    assert [count_in(number) for number in range(len(expected))] == expected
    assert count_in(99) >= 1  # a decode that needs more rounds still ends


def plain_choice(p: Floats, ranks: Floats, masked: Bool, threshold: float, minimum: int) -> list[int]:
    """Return all masked positions above the threshold if they are enough, otherwise the best ones."""
    free = [i for i in range(len(p)) if masked[i]]
    sure = [i for i in free if p[i] > np.float32(threshold)]
    return sure if len(sure) >= minimum else sorted(sorted(free, key=lambda i: -ranks[i])[:minimum])


cases = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 5), st.sampled_from([0.0, 0.3, 0.8, 1.0])
)


@given(cases)
def test_positions_unmasked_by_each_strategy(case: tuple[int, int, int, float]) -> None:
    seed, size, steps, threshold = case
    rng = np.random.default_rng(seed)
    p = rng.choice(np.float32([0.1, 0.3, 0.5, 0.8, 0.9]), size)
    confidences, masked = rng.choice(np.float32([-2, -1, -0.5]), size), rng.random(size) < 0.7
    minimum = -(-size // min(steps, size))
    for strategy, ranks, limit in (
        ("threshold", confidences, threshold),
        ("vanilla", confidences, 2.0),
        ("sequential", -np.arange(size), 2.0),
    ):
        options = {
            "strategy": strategy, "skip_threshold": threshold, "block_size": size, "block_steps": min(steps, size)
        }  # fmt: skip
        found = chosen(block_of(p, confidences, masked), **options)
        assert found == plain_choice(p, ranks, masked, limit, minimum)
        waiting = chosen(block_of(p, confidences, masked, fully_activated=False), **options)
        assert waiting == [i for i in range(size) if masked[i] and p[i] > np.float32(limit)]


def test_published_rules_of_fixed_counts_overwrite_unmasked_positions() -> None:
    """SDAR: three positions are due and two are masked. `sequential` never overwrites."""
    p, masked = np.float32([0.5, 0.2, 0.9, 0.4, 0.3, 0.1]), np.array([False, True, False, True, False, False])
    options = {"block_size": 6, "block_steps": 2}
    for strategy, published, count in (
        ("vanilla", True, 3),
        ("threshold", True, 3),
        ("vanilla", False, 2),
        ("sequential", True, 2),
    ):
        found = chosen(block_of(p, p, masked), strategy=strategy, reference=published, **options)
        assert len(found) == count
        assert {1, 3} <= set(found)
