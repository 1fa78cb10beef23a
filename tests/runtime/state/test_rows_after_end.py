"""Rows behind an unmasked end of text leave the branch and its windows."""

import numpy as np

from lopa.runtime.state.branch import Block, BlockState, Branch, without_rows_after_end
from lopa.runtime.state.layout import Layout

EOS = 0


def branch_of(tokens: list[int], unmasked: list[int]) -> Branch:
    """Return a branch with a prompt of 2, one of them an end of text, and blocks of 3."""
    blocks = [Block(0, 2, 0, BlockState.IN_CACHE, True)]
    blocks += [
        Block(start, start + 3, unmasked[start : start + 3].count(0), BlockState.ACTIVE, True)
        for start in range(2, len(tokens), 3)
    ]
    return Branch(np.array(tokens), np.array(unmasked, bool), tuple(blocks), True, None, Layout(2, 2, 3, 20))


def test_everything_behind_the_first_unmasked_end_is_dropped() -> None:
    cut = without_rows_after_end(branch_of([5, 0, 7, 2, 0, 0, 2, 2], [1, 1, 1, 0, 1, 1, 0, 0]), (EOS,))
    assert cut.tokens.tolist() == [5, 0, 7, 2, 0]
    assert cut.unmasked.tolist() == [True, True, True, False, True]
    assert [(block.start, block.end) for block in cut.blocks] == [(0, 2), (2, 5)]
    inside = without_rows_after_end(branch_of([5, 0, 0, 2, 2], [1, 1, 1, 0, 0]), (EOS,))
    assert [(block.start, block.end) for block in inside.blocks] == [(0, 2), (2, 3)]


def test_an_end_in_the_prompt_or_masked_drops_nothing() -> None:
    for tokens, unmasked in (([5, 0, 7, 2, 8], [1, 1, 1, 0, 1]), ([5, 0, 7, 0, 8], [1, 1, 1, 0, 1])):
        branch = branch_of(tokens, unmasked)
        assert without_rows_after_end(branch, (EOS,)) is branch
