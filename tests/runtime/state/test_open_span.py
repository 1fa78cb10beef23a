"""Which positions of a block may be decided in a round, and about which the model is asked."""

import numpy as np
import pytest

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.branch import Branch, branch_from_prompt, prepared
from lopa.runtime.state.layout import layout_of_prompt
from lopa.runtime.state.windows import asked_positions, open_positions, open_span

PROMPT = 3


def branch_with(decided: list[int], config: GenerationConfig) -> Branch:
    """A prompt of 3 and one block of 8, from 3 or from 0, of which positions are decided."""
    branch = prepared(branch_from_prompt(np.arange(PROMPT), layout_of_prompt(PROMPT, config, 0)), config, mask_token=9)
    branch.decided[decided] = True
    return branch


@pytest.mark.parametrize(
    ("sub_block", "decided", "span"),
    [
        (None, [], (3, 11)),
        (4, [], (3, 7)),
        (4, [3, 4, 5], (3, 7)),
        (4, [3, 4, 5, 6], (7, 11)),
        (4, [7, 8], (3, 7)),  # left to right
        (3, [3, 4, 5, 6, 7, 8], (9, 11)),  # the last one is shorter
        (4, list(range(3, 11)), (7, 11)),  # all decided: the last one
    ],
)
def test_sub_blocks_open_left_to_right(sub_block: int | None, decided: list[int], span: tuple[int, int]) -> None:
    config = GenerationConfig(strategy="threshold", block_size=8, sub_block=sub_block, max_new_tokens=8)
    branch = branch_with(decided, config)
    assert open_span(branch, branch.blocks[-1], config) == span
    free = [position for position in range(*span) if position not in decided]
    assert np.flatnonzero(open_positions(branch, config)).tolist() == free
    # Asked are the undecided ones of the whole block: later ones rank branches.
    assert asked_positions(branch, config).tolist() == [i for i in range(3, 11) if i not in decided]


def test_the_tail_of_the_prompt_lies_decided_in_the_first_block() -> None:
    config = GenerationConfig(strategy="threshold", alignment="absolute", block_size=8, max_new_tokens=5)
    branch = branch_with([], config)
    assert open_span(branch, branch.blocks[-1], config) == (0, 8)
    assert asked_positions(branch, config).tolist() == [3, 4, 5, 6, 7]


def test_published_rules_of_so_many_a_step_ask_about_every_row() -> None:
    config = GenerationConfig.reference(
        strategy="vanilla", alignment="absolute", block_size=8, block_steps=4, max_new_tokens=5
    )
    assert asked_positions(branch_with([4], config), config).tolist() == list(range(8))
