"""Verified and drafted states with plain numbers, and equality of states."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.params import branch_of, context_of

from lopa.runtime.decoding import speculation
from lopa.runtime.decoding.speculation import accepted_draft
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.context import Context

MASK = 2
PROMPT = np.arange(10, 15)
OPTIONS: dict[str, Any] = {"strategy": "vanilla", "block_size": 4, "max_new_tokens": 8}
CONTEXT = context_of(mask_token=MASK, prediction_shift=1, **OPTIONS)


def test_the_last_draft_that_agrees_is_accepted() -> None:
    assert accepted_draft([True], 0) is None
    assert accepted_draft([True, False, False], 0) is None
    assert accepted_draft([True, True, False, True, True, False], 0) == 4
    assert accepted_draft([True, True, False, True, True, False], 3) == 4
    assert accepted_draft([True, True, False], 1) is None, "none before the current one"


def branch_with(unmasked: int, context: Context = CONTEXT, *, cached: bool = True) -> Branch:
    """Return a branch with the prompt and an open block with `unmasked` unmasked positions."""
    branch = branch_of(PROMPT, context, cached=cached)
    tokens, flags = branch.tokens.copy(), branch.unmasked.copy()
    tokens[5 : 5 + unmasked], flags[5 : 5 + unmasked] = 100, True
    return replace(branch, tokens=tokens, unmasked=flags)


def test_a_draft_fits_an_anchor_that_commits_no_rows() -> None:
    anchor, draft = branch_with(1), branch_with(2)
    assert speculation._fits_anchor(draft, anchor, CONTEXT.params)
    first = branch_with(1, cached=False)
    assert not speculation._fits_anchor(draft, first, CONTEXT.params)  # the draft needs a prefix that is not cached yet
    assert not speculation._fits_anchor(branch_with(2, cached=False), first, CONTEXT.params)


@pytest.mark.parametrize("change", ["token", "unmasked", "rows", "another block"])
def test_statistics_of_another_state_are_not_used(change: str) -> None:
    state, context = branch_with(2), CONTEXT
    assert speculation._agrees(branch_with(2), state, context.params)
    if change == "token":
        other = replace(state, tokens=np.where(np.arange(9) == 6, 101, state.tokens))
    elif change == "unmasked":
        other = replace(state, unmasked=np.arange(9) != 8)
    elif change == "rows":  # rows behind an end of text that are still there
        shorter = state.blocks[-1]._replace(end=8)
        state = replace(
            state, tokens=state.tokens[:8], unmasked=state.unmasked[:8], blocks=(*state.blocks[:-1], shorter)
        )
        other = branch_with(2)
    else:
        context = context_of(mask_token=MASK, prediction_shift=1, cache="none", **OPTIONS)
        state = branch_with(2, context)
        larger = state.blocks[-1]._replace(end=state.blocks[-1].end + 2)
        other = replace(state, blocks=(*state.blocks[:-1], larger))
    assert not speculation._agrees(other, state, context.params)
