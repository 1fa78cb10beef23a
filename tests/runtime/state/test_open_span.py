"""Positions of a block that may be unmasked in a round, and sampled positions."""

import numpy as np
import pytest
from tests.params import branch_of, context_of, params_of

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Branch, masked_among, open_among, open_span
from lopa.runtime.state.packed_rows import sampled_positions

PROMPT = 3


def branch_with(unmasked: list[int], params: DecodingParams) -> Branch:
    """Return a branch with a prompt of 3 and one block of 8, from 3 or from 0, with some positions unmasked."""
    branch = branch_of(np.arange(PROMPT), context_of(params, mask_token=9))
    branch.unmasked[unmasked] = True
    return branch


@pytest.mark.parametrize(
    ("sub_block", "unmasked", "span"),
    [
        (None, [], (3, 11)),
        (4, [], (3, 7)),
        (4, [3, 4, 5], (3, 7)),
        (4, [3, 4, 5, 6], (7, 11)),
        (4, [7, 8], (3, 7)),  # left to right
        (3, [3, 4, 5, 6, 7, 8], (9, 11)),  # the last sub-block is shorter
        (4, list(range(3, 11)), (7, 11)),  # everything is unmasked, so the last sub-block
    ],
)
def test_sub_blocks_open_left_to_right(sub_block: int | None, unmasked: list[int], span: tuple[int, int]) -> None:
    params = params_of(strategy="threshold", block_size=8, sub_block=sub_block, max_new_tokens=8)
    branch = branch_with(unmasked, params)
    assert open_span(branch, branch.blocks[-1], params) == span
    free = [position for position in range(*span) if position not in unmasked]
    masked = [i for i in range(3, 11) if i not in unmasked]
    every = np.arange(14)  # three behind the branch are closed
    assert np.flatnonzero(open_among(branch, every, params)).tolist() == free
    assert np.flatnonzero(masked_among(branch, every)).tolist() == masked
    # All masked positions of the block are sampled, since later ones rank branches.
    assert sampled_positions(branch, params).tolist() == masked


def test_the_prompts_remainder_is_unmasked_in_the_first_block() -> None:
    params = params_of(strategy="threshold", alignment="absolute", block_size=8, max_new_tokens=5)
    branch = branch_with([], params)
    assert open_span(branch, branch.blocks[-1], params) == (0, 8)
    assert sampled_positions(branch, params).tolist() == [3, 4, 5, 6, 7]


def test_published_rules_of_fixed_counts_sample_every_row() -> None:
    params = params_of(
        GenerationConfig(
            reference=True, strategy="vanilla", alignment="absolute", block_size=8, block_steps=4, max_new_tokens=5
        )
    )
    assert sampled_positions(branch_with([4], params), params).tolist() == list(range(8))
