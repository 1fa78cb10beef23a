"""The ladder and the walk on plain numbers, and when two branches are asked the same."""

from dataclasses import replace

import numpy as np
import pytest
from lopa.runtime.ladder.guesses import ladder
from lopa.runtime.ladder.question import asked_beside, same_question
from lopa.runtime.ladder.walk import walk

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.branch import Branch, branch_from_prompt, prepared
from lopa.runtime.state.layout import layout_of_prompt

MASK = 2
PROMPT = np.arange(10, 15)
CONFIG = GenerationConfig(strategy="vanilla", block_size=4, max_new_tokens=8)


def test_a_ladder_ends_at_its_length_or_where_nothing_follows() -> None:
    def following(state: int) -> int | None:
        return state + 1 if state < 5 else None

    assert ladder(3, following, 2) == (3, 4)
    assert ladder(3, following, 9) == (3, 4, 5)
    assert ladder(3, following, 1) == (3,)


def test_a_walk_goes_on_from_the_last_guess_that_agrees() -> None:
    asked: list[tuple[int, int]] = []

    def next_state(state: int, rung: int) -> int:
        asked.append((state, rung))
        return state + 1 if state != 11 else state + 2

    # From 10 to 11, which is guessed; from 11 to 13, guessed twice; to 14, which is not.
    assert walk((10, 11, 12, 13, 13, 15), next_state, lambda guess, state: guess == state) == (4, 14)
    assert asked == [(10, 0), (11, 1), (13, 4)]
    assert walk((10,), next_state, lambda *_: True) == (0, 11)


def branch_with(decided: int, config: GenerationConfig = CONFIG, *, cached: bool = True) -> Branch:
    """The prompt, and an open block of which so many positions are decided."""
    branch = prepared(branch_from_prompt(PROMPT, layout_of_prompt(5, config), cached=cached), config, MASK)
    tokens, flags = branch.tokens.copy(), branch.decided.copy()
    tokens[5 : 5 + decided], flags[5 : 5 + decided] = 100, True
    return replace(branch, tokens=tokens, decided=flags)


def test_a_guess_is_asked_beside_an_anchor_that_keeps_no_rows() -> None:
    anchor, guess = branch_with(1), branch_with(2)
    assert asked_beside(guess, anchor, CONFIG)
    first = branch_with(1, cached=False)
    assert not asked_beside(guess, first, CONFIG)  # the guess has a prefix that is not there yet
    assert not asked_beside(branch_with(2, cached=False), first, CONFIG)


@pytest.mark.parametrize("change", ["token", "decided", "rows", "another block"])
def test_another_question(change: str) -> None:
    state = branch_with(2)
    assert same_question(branch_with(2), state, CONFIG)
    if change == "token":
        other = replace(state, tokens=np.where(np.arange(9) == 6, 101, state.tokens))
    elif change == "decided":
        other = replace(state, decided=np.arange(9) != 8)
    elif change == "rows":  # rows behind an end-of-text that are still there
        shorter = replace(state.blocks[-1], end=8)
        state = replace(state, tokens=state.tokens[:8], decided=state.decided[:8], blocks=(*state.blocks[:-1], shorter))
        other = branch_with(2)
    else:
        whole = GenerationConfig(strategy="vanilla", block_size=4, max_new_tokens=8, cache="none")
        state = branch_with(2, whole)
        larger = replace(state.blocks[-1], end=state.blocks[-1].end + 2)
        assert not same_question(replace(state, blocks=(*state.blocks[:-1], larger)), state, whole)
        return
    assert not same_question(other, state, CONFIG)
