"""Remasked positions, compared with a plain version of the rule (tests/conformance has recordings)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.params import context_of, params_of
from tests.runtime.strategy.blocks import unmasked_of, view_of

from lopa.runtime.decoding.remask import remask_branch, remaskable_positions
from lopa.runtime.state.branch import Block, BlockState, Branch
from lopa.runtime.state.layout import Layout
from lopa.runtime.strategy import Candidates, RemaskView
from lopa.runtime.strategy.strategies import BEFORE_FIRST_STEP, least_probable

MASK, END = 2, 0


@given(
    probabilities=st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.5, 0.7]), max_size=12),
    accepted=st.integers(0, 4),
    before=st.integers(0, 8),
    limit=st.integers(0, 8),
)
def test_the_least_probable_first_and_fewer_than_the_step_before_unmasked(
    probabilities: list[float], accepted: int, before: int, limit: int
) -> None:
    params = params_of(strategy="d2f", remask_threshold=0.5)
    found = least_probable(RemaskView(np.array(probabilities, np.float32), accepted, before, limit), params)
    expected: list[int] = []
    while accepted > 1 and len(expected) < min(before - 1, limit):
        left = [i for i, p in enumerate(probabilities) if p < 0.5 and i not in expected]
        if not left:
            break
        expected.append(min(left, key=lambda i: (probabilities[i], i)))
    assert np.flatnonzero(found).tolist() == sorted(expected)


@pytest.mark.parametrize(("masked", "cap"), [(3, 5), (7, 5), (9, 6), (20, 14), (28, 19), (29, 20), (64, 20)])
def test_wino_unmasks_at_most_70_percent_within_5_to_20(masked: int, cap: int) -> None:
    sure = np.linspace(0.99, 0.7, masked, dtype=np.float32)[::-1].copy()
    candidates = Candidates(np.arange(masked), sure, np.zeros(masked, np.float32))
    chosen = unmasked_of(view_of(np.arange(masked), candidates), params_of(strategy="wino", skip_threshold=0.6))
    assert chosen == list(range(max(0, masked - cap), masked))


def two_blocks(*, before: int | None = None) -> Branch:
    """Return a branch with a cached prompt of 3 and two active blocks of 4, with an end of text at 8."""
    tokens = np.array([10, 11, 12, MASK, 14, 15, 16, 17, END, 19, MASK])
    blocks = (
        Block(0, 3, 0, BlockState.IN_CACHE, True),
        Block(3, 7, 1, BlockState.ACTIVE, True, 1, before),
        Block(7, 11, 1, BlockState.ACTIVE, False, 1, before),
    )
    return Branch(tokens, tokens != MASK, blocks, True, None, Layout(3, 3, 4, 11))


@pytest.mark.parametrize(
    ("before", "limit", "ends", "expected"),
    [
        (None, None, (END,), [4, 5, 6, 7, 9]),
        (None, None, (), [4, 5, 6, 7, 8, 9]),
        (2, None, (END,), [4, 5, 6, 7, 9]),
        (1, None, (END,), []),
        (None, 0, (END,), []),
    ],
)
def test_remaskable_positions(
    before: int | None, limit: int | None, ends: tuple[int, ...], expected: list[int]
) -> None:
    context = context_of(ends=ends, strategy="d2f", remask_threshold=0.5, remask_limit=limit)
    found = remaskable_positions(two_blocks(before=before), context)
    assert found.tolist() == expected


@pytest.mark.parametrize(("limit", "expected"), [(1, [5]), (3, [4, 5, 7]), (9, [4, 5, 7, 9])])
def test_the_limit_covers_all_blocks_together(limit: int, expected: list[int]) -> None:
    context = context_of(mask_token=MASK, ends=(END,), strategy="d2f", remask_threshold=0.5, remask_limit=limit)
    remaskable = np.array([4, 5, 7, 9])
    probabilities = np.array([0.3, 0.2, 0.1, 0.4], np.float32)
    written = np.array([3, 6, 8, 10])
    after, positions = remask_branch(two_blocks(), written, remaskable, probabilities, context)
    assert sorted(positions.tolist()) == expected
    assert (after.remasked, [block.accepted for block in after.blocks]) == (len(expected), [None, 2, 2])
    assert np.flatnonzero(~after.unmasked).tolist() == sorted([3, 10, *expected])


def test_a_block_may_remask_29_positions_before_its_first_step() -> None:
    """The published code counts a block as having unmasked 30 positions before its first step."""
    view = RemaskView(np.full(40, 0.1), accepted=2, before=BEFORE_FIRST_STEP, limit=64)
    found = least_probable(view, params_of(strategy="wino", remask_threshold=0.5))
    assert np.flatnonzero(found).tolist() == list(range(29))
