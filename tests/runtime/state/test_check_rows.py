"""Every sampled position is predicted by some row; other rounds are rejected before their forward."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.plans import branch_of, context_of

from lopa.runtime.row_sharing import always
from lopa.runtime.state.batch import with_shared_rows
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.windows import Windows, check_rows, windows_from_branches

PROMPT, MASK = 4, 9


def windows_of(*, shift: int, cached: bool = False, branches: int = 1, **options: Any) -> Windows:
    """Return the windows of the first round of a prompt of 4, or with `cached` of the round after it."""
    own = {"block_size": 8, "max_new_tokens": 16, "window": "block_causal", **options}
    context = context_of(mask_token=MASK, prediction_shift=shift, **own)
    anchor = branch_of(np.arange(PROMPT), context, cached=cached)
    others = [_with_token(anchor, PROMPT + number) for number in range(branches - 1)]
    return windows_from_branches((*others, anchor), context)


def _with_token(branch: Branch, position: int) -> Branch:
    tokens, unmasked = branch.tokens.copy(), branch.unmasked.copy()
    tokens[position], unmasked[position] = 5, True
    return replace(branch, tokens=tokens, unmasked=unmasked)


def test_the_kept_row_predicts_only_the_position_behind_the_cache() -> None:
    windows = windows_of(shift=1, cached=True)
    assert windows.logits_positions[windows.from_kept_row].tolist() == [PROMPT]
    check_rows(windows, prediction_shift=1, unseen=0, kept_for=PROMPT)
    for kept_for in (None, PROMPT - 1, PROMPT + 1):
        with pytest.raises(RuntimeError, match=rf"predicts the positions \[{PROMPT}\]"):
            check_rows(windows, prediction_shift=1, unseen=0, kept_for=kept_for)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_row_of_another_position_is_rejected(shift: int, shared: bool) -> None:
    rng = np.random.default_rng(shift)
    windows = windows_of(shift=shift, branches=3)
    if shared:
        windows = with_shared_rows(windows, always)
        assert windows.shared is not None
    check_rows(windows, prediction_shift=shift, unseen=0, kept_for=None)
    for _ in range(20):
        branch = int(rng.integers(3))
        column = int(rng.integers(windows.counts[branch]))
        if windows.shared is None:
            other = windows.logits_index.copy()
            other[branch, column] = (other[branch, column] + rng.integers(1, 5)) % windows.lengths[branch]
            wrong = replace(windows, logits_index=other)
        else:
            answers = windows.shared.answers.copy()
            sampled = windows.shared.positions[0, windows.shared.logits_index[0]]
            answers[branch, column] = rng.choice(np.flatnonzero(sampled != sampled[answers[branch, column]]))
            wrong = replace(windows, shared=replace(windows.shared, answers=answers))
        with pytest.raises(RuntimeError, match="no row predicts the positions"):
            check_rows(wrong, prediction_shift=shift, unseen=0, kept_for=None)
