"""Verified and drafted states with plain numbers, and equality of states."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.params import branch_of, context_of

from lopa.runtime.decoding import speculation
from lopa.runtime.decoding.round import EditedTokens, RoundEnd
from lopa.runtime.decoding.speculation import accepted_draft, drafts, verify
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.context import Context

MASK = 2
PROMPT = np.arange(10, 15)
OPTIONS: dict[str, Any] = {"strategy": "vanilla", "block_size": 4, "max_new_tokens": 8}
CONTEXT = context_of(mask_token=MASK, prediction_shift=1, **OPTIONS)
NO_ROWS: Any = None


def test_the_last_draft_that_agrees_is_accepted() -> None:
    assert accepted_draft([True], 0) is None
    assert accepted_draft([True, False, False], 0) is None
    assert accepted_draft([True, True, False, True, True, False], 0) == 4
    assert accepted_draft([True, True, False, True, True, False], 3) == 4
    assert accepted_draft([True, True, False], 1) is None, "none before the current one"


def verified(branches: tuple[int, ...], steps: int) -> Any:
    """Return the result of `verify` with numbers as states; the anchor is the last."""
    scores: Any = SimpleNamespace(branches=branches)
    return verify(scores, NO_ROWS, steps, CONTEXT, ())


def test_verification_continues_from_the_last_draft_that_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, int, int]] = []

    def strategy_step(_: Any, state: int, number: int, step: int, *__: Any) -> tuple[int, list[int], EditedTokens]:
        used.append((state, number, step))
        return state + 1 if state != 11 else state + 2, [state], EditedTokens()

    monkeypatch.setattr(speculation, "strategy_step", strategy_step)
    monkeypatch.setattr(speculation, "_agrees", lambda draft, state, _: draft == state)
    # 10 to 11 was drafted, 11 to 13 was drafted twice, and 14 was not drafted.
    found = verified((11, 12, 13, 13, 15, 10), 6)
    assert (found.states, found.unmasked, found.numbers) == ((11, 13, 14), ([10], [11], [13]), (5, 0, 3))
    assert found.branches == (14,)
    assert used == [(10, 5, 7), (11, 0, 8), (13, 3, 9)]
    monkeypatch.setattr(speculation, "_agrees", lambda *_: True)
    assert verified((10,), 0).states == (11,)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the strategy by one whose states are numbers and that unmasks nothing from 5 on. Return its steps."""
    steps: list[int] = []

    def strategy_step(_: Any, state: int, number: int, step: int, *__: Any) -> tuple[int, list[int], EditedTokens]:
        assert number == 1, "statistics are those of the last verified step"
        steps.append(step)
        return state + 1, [state] if state < 5 else [], EditedTokens()

    monkeypatch.setattr(speculation, "strategy_step", strategy_step)
    monkeypatch.setattr(speculation, "stop_reason", lambda *_, **__: None)
    monkeypatch.setattr(speculation, "_fits_anchor", lambda *_: True)
    return steps


def drafted(branches: int) -> tuple[Any, ...]:
    states: Any = (2, 3)
    context = context_of(speculative=True, branches=branches, **OPTIONS)
    return drafts(RoundEnd(NO_ROWS, NO_ROWS, states[-1:], states, (0, 1), (), ()), 9, context, ())


def test_drafts_end_at_their_number_or_where_no_step_follows(counting: list[int]) -> None:
    assert drafted(2) == (4,)
    assert drafted(9) == (4, 5)
    assert counting == [10, 10, 11, 12]


def test_drafts_end_where_nothing_is_masked_or_rows_would_differ(
    counting: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(speculation, "stop_reason", lambda state, *_, **__: "length" if state == 5 else None)
        assert drafted(9) == (4,)
    monkeypatch.setattr(speculation, "_fits_anchor", lambda draft, anchor, _: draft < 5 and anchor == 3)
    assert drafted(9) == (4,)
    assert counting == [10, 11, 10, 11]


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
        shorter = replace(state.blocks[-1], end=8)
        state = replace(
            state, tokens=state.tokens[:8], unmasked=state.unmasked[:8], blocks=(*state.blocks[:-1], shorter)
        )
        other = branch_with(2)
    else:
        context = context_of(mask_token=MASK, prediction_shift=1, cache="none", **OPTIONS)
        state = branch_with(2, context)
        larger = replace(state.blocks[-1], end=state.blocks[-1].end + 2)
        other = replace(state, blocks=(*state.blocks[:-1], larger))
    assert not speculation._agrees(other, state, context.params)
