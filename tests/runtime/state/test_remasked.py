"""Remasking: the branch equals one on which the positions were never unmasked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.params import branch_of, context_of

from lopa.runtime.state.branch import (
    BlockState,
    Branch,
    with_counted_masks,
    with_remasked,
    with_tokens,
    without_rows_after_end,
)
from lopa.runtime.state.context import Context
from lopa.runtime.state.pipeline import with_next_block

MASK, END, PROMPT, SIZE = 2, 0, 3, 4


def context_with(**options: Any) -> Context:
    own = {"block_size": SIZE, "max_new_tokens": 10, "block_add_threshold": 0.0, "logprobs": True, **options}
    return context_of(mask_token=MASK, ends=(END,), prediction_shift=1, **own)


CONTEXT = context_with()


def opened(blocks: int, context: Context = CONTEXT) -> Branch:
    """Return a branch with a cached prompt of 3 and active blocks of 4, all masked."""
    return branch_of(np.arange(10, 13), context, cached=True, blocks=blocks)


def with_unmasked(branch: Branch, positions: list[int], tokens: list[int], context: Context = CONTEXT) -> Branch:
    logprobs = -np.arange(1, len(positions) + 1, dtype=np.float32)
    after = with_tokens(branch, np.array(positions, np.int64), np.array(tokens, np.int64), logprobs, context)
    return replace(after, blocks=with_counted_masks(after.blocks, after.unmasked))


def remasked(branch: Branch, positions: list[int], context: Context = CONTEXT) -> Branch:
    return with_remasked(branch, np.array(positions, np.int64), context)


def assert_same(found: Branch, expected: Branch) -> None:
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.unmasked.tolist() == expected.unmasked.tolist()
    assert found.logprobs is not None
    assert expected.logprobs is not None
    np.testing.assert_array_equal(found.logprobs, expected.logprobs)
    assert (found.blocks, found.ended) == (expected.blocks, expected.ended)


@given(st.sets(st.integers(3, 12), min_size=1), st.sets(st.integers(3, 12)), st.integers(3, 12))
def test_remasking_undoes_unmasking(written: set[int], those: set[int], ended_at: int) -> None:
    masked_again = sorted(written & those)
    kept = sorted(written - those)
    tokens = {position: END if position == ended_at else 20 + position for position in written}
    branch = opened(3)
    every = with_unmasked(branch, sorted(written), [tokens[position] for position in sorted(written)])
    found = remasked(every, masked_again)

    assert np.flatnonzero(found.unmasked[PROMPT:]).tolist() == [position - PROMPT for position in kept]
    assert found.tokens[PROMPT:].tolist() == [tokens.get(p, MASK) if p in kept else MASK for p in range(3, 13)]
    assert found.ended == (ended_at in kept)
    for block in found.blocks[1:]:
        assert block.masks == sum(block.start <= p < block.end for p in range(3, 13) if p not in kept)
    assert found.logprobs is not None
    assert every.logprobs is not None
    expected = np.where(found.unmasked, every.logprobs, np.float32(np.nan))
    np.testing.assert_array_equal(found.logprobs, expected)
    assert every.unmasked[sorted(written)].all(), "the original branch is unchanged"


@pytest.mark.parametrize("cache", ["blocks", "none"])
def test_positions_cut_off_behind_an_end_of_text_return(cache: str) -> None:
    context = context_with(strategy={"blocks": "d2f", "none": "threshold"}[cache], cache=cache)
    before = with_unmasked(opened(2 if cache == "blocks" else 1, context), [4], [24], context)
    cut = without_rows_after_end(with_unmasked(before, [5], [END], context), (END,))
    assert (len(cut.tokens), cut.blocks[-1].end, cut.ended) == (6, 6, True)
    whole = remasked(cut, [5], context)
    assert_same(with_next_block(whole, context) if cache == "blocks" else whole, before)
    # An end of text that is left still cuts off the rest.
    ended = without_rows_after_end(with_unmasked(before, [6], [END], context), (END,))
    again = remasked(ended, [4], context)
    assert (again.ended, len(again.tokens)) == (True, 7)


def test_only_unmasked_positions_of_active_blocks_can_be_remasked() -> None:
    branch = with_unmasked(opened(2), [3, 4, 5, 6], [23, 24, 25, 26])
    due = branch.blocks[1]._replace(state=BlockState.TO_CACHE)
    branch = replace(branch, blocks=(branch.blocks[0], due, branch.blocks[2]))
    for wrong in (2, 3, 8):  # of the prompt, of a due block, masked
        with pytest.raises(ValueError, match=str(wrong)):
            remasked(branch, [wrong])
