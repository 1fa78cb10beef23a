"""Decided positions made undecided again: the branch is as if they had never been filled."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.algorithm.filling import Fills, filled, without_rows_after_end

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.branch import BlockState, Branch, branch_from_prompt, prepared, taken_back, with_counted_masks
from lopa.runtime.state.layout import layout_of_prompt

MASK, END, PROMPT, SIZE = 2, 0, 3, 4
OPEN = GenerationConfig(block_size=SIZE, max_new_tokens=10, block_add_threshold=0.0, logprobs=True)


def opened(blocks: int, config: GenerationConfig = OPEN, *, positions: int = 10) -> Branch:
    """A prompt of 3 in the cache and so many active blocks of 4, nothing decided."""
    config = replace(config, max_new_tokens=positions)
    layout = layout_of_prompt(PROMPT, config)
    branch = branch_from_prompt(np.arange(10, 13), layout, mask_token=MASK, cached=True, with_logprobs=True)
    for _ in range(blocks):
        branch = prepared(branch, config, MASK)
    return branch


def with_fills(branch: Branch, positions: list[int], tokens: list[int]) -> Branch:
    said = -np.arange(1, len(positions) + 1, dtype=np.float32)
    fills = Fills(np.zeros(0, np.bool_), np.array(positions, np.int64), np.array(tokens, np.int64), said)
    after = filled(branch, fills, mask_token=MASK, ends=(END,))
    return replace(after, blocks=with_counted_masks(after.blocks, after.decided))


def back(branch: Branch, positions: list[int]) -> Branch:
    return taken_back(branch, np.array(positions, np.int64), mask_token=MASK, ends=(END,))


def assert_same(found: Branch, expected: Branch) -> None:
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.decided.tolist() == expected.decided.tolist()
    assert found.logprobs is not None
    assert expected.logprobs is not None
    np.testing.assert_array_equal(found.logprobs, expected.logprobs)
    assert (found.blocks, found.ended) == (expected.blocks, expected.ended)


@given(st.sets(st.integers(3, 12), min_size=1), st.sets(st.integers(3, 12)), st.integers(3, 12))
def test_taking_back_is_never_having_filled(fills: set[int], those: set[int], ended_at: int) -> None:
    given_back = sorted(fills & those)
    kept = sorted(fills - those)
    tokens = {position: END if position == ended_at else 20 + position for position in fills}
    branch = opened(3)
    every = with_fills(branch, sorted(fills), [tokens[position] for position in sorted(fills)])
    found = back(every, given_back)

    assert np.flatnonzero(found.decided[PROMPT:]).tolist() == [position - PROMPT for position in kept]
    assert found.tokens[PROMPT:].tolist() == [tokens.get(p, MASK) if p in kept else MASK for p in range(3, 13)]
    assert found.ended == (ended_at in kept)
    for block in found.blocks[1:]:
        assert block.masks == sum(block.start <= p < block.end for p in range(3, 13) if p not in kept)
    assert found.logprobs is not None
    assert every.logprobs is not None
    expected = np.where(found.decided, every.logprobs, np.float32(np.nan))
    np.testing.assert_array_equal(found.logprobs, expected)
    assert every.decided[sorted(fills)].all(), "the branch it was made of is left as it is"


@pytest.mark.parametrize("cache", ["blocks", "none"])
def test_what_was_cut_off_behind_an_end_of_text_is_there_again(cache: str) -> None:
    strategy = {"blocks": "d2f", "none": "threshold"}[cache]
    config = replace(OPEN, strategy=strategy, cache=cache)  # type: ignore[arg-type]
    before = with_fills(opened(2 if cache == "blocks" else 1, config), [4], [24])
    cut = without_rows_after_end(with_fills(before, [5], [END]), (END,))
    assert (len(cut.tokens), cut.blocks[-1].end, cut.ended) == (6, 6, True)
    whole = back(cut, [5])
    assert_same(prepared(whole, config, MASK) if cache == "blocks" else whole, before)
    # What still ends stays cut off.
    ended = without_rows_after_end(with_fills(before, [6], [END]), (END,))
    assert (back(ended, [4]).ended, len(back(ended, [4]).tokens)) == (True, 7)


def test_a_last_block_that_is_shorter_stays_so() -> None:
    assert back(with_fills(opened(3), [12], [30]), [12]).blocks == opened(3).blocks
    assert opened(3).blocks[-1].end == 13


def test_completion_flags_stay() -> None:
    branch = prepared(with_fills(opened(3), [3, 4, 5, 6], [23, 24, 25, 26]), OPEN, MASK)
    assert branch.blocks[2].complete
    after = back(branch, [3, 4, 5, 6])
    assert [block.complete for block in after.blocks] == [block.complete for block in branch.blocks]
    assert after.blocks[1].masks == 4


def test_only_decided_positions_of_active_blocks_can_be_taken_back() -> None:
    branch = with_fills(opened(2), [3, 4, 5, 6], [23, 24, 25, 26])
    due = replace(branch.blocks[1], state=BlockState.TO_CACHE)
    branch = replace(branch, blocks=(branch.blocks[0], due, branch.blocks[2]))
    for wrong in (2, 3, 8):  # of the prompt, of a block that is due, undecided
        with pytest.raises(ValueError, match=str(wrong)):
            back(branch, [wrong])
