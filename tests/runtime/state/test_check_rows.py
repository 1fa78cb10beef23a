"""Every sampled position is predicted by some row; other rounds are rejected before their forward."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.params import branch_of, context_of

from lopa.runtime.row_sharing import always
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.packed_rows import PackedRows, check_rows, pack_rows, with_shared_rows

PROMPT, MASK = 4, 9


def rows_of(*, shift: int, cached: bool = False, branches: int = 1, **options: Any) -> PackedRows:
    """Return the rows of the first round of a prompt of 4, or with `cached` of the round after it."""
    own = {"block_size": 8, "max_new_tokens": 16, "attention": "block_causal", **options}
    context = context_of(mask_token=MASK, prediction_shift=shift, **own)
    anchor = branch_of(np.arange(PROMPT), context, cached=cached)
    others = [_with_token(anchor, PROMPT + number) for number in range(branches - 1)]
    return pack_rows((*others, anchor), context)


def _with_token(branch: Branch, position: int) -> Branch:
    tokens, unmasked = branch.tokens.copy(), branch.unmasked.copy()
    tokens[position], unmasked[position] = 5, True
    return replace(branch, tokens=tokens, unmasked=unmasked)


def test_the_kept_row_predicts_only_the_position_behind_the_cache() -> None:
    packed = rows_of(shift=1, cached=True)
    assert packed.column_positions[packed.from_kept_row].tolist() == [PROMPT]
    check_rows(packed, prediction_shift=1, unseen=0, kept_for=PROMPT)
    for kept_for in (None, PROMPT - 1, PROMPT + 1):
        with pytest.raises(RuntimeError, match=rf"predicts the positions \[{PROMPT}\]"):
            check_rows(packed, prediction_shift=1, unseen=0, kept_for=kept_for)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_row_of_another_position_is_rejected(shift: int, shared: bool) -> None:
    rng = np.random.default_rng(shift)
    packed = rows_of(shift=shift, branches=3)
    if shared:
        packed = with_shared_rows(packed, always)
        assert len(packed.lengths) == 1
    check_rows(packed, prediction_shift=shift, unseen=0, kept_for=None)
    for _ in range(20):
        column = int(rng.integers(len(packed.column_positions)))
        own = packed.positions[packed.column_rows[column]]
        wrong = packed.column_rows.copy()
        wrong[column] = rng.choice(np.flatnonzero(packed.positions != own))
        with pytest.raises(RuntimeError, match="no row predicts the positions"):
            check_rows(replace(packed, column_rows=wrong), prediction_shift=shift, unseen=0, kept_for=None)


def test_a_column_that_reads_the_result_of_another_row_is_rejected() -> None:
    packed = with_shared_rows(rows_of(shift=0, branches=2), always)
    assert packed.answers is not None
    packed.answers[1] += 1
    with pytest.raises(RuntimeError, match=rf"no row predicts the positions \[{PROMPT + 2}\]"):
        check_rows(packed, prediction_shift=0, unseen=0, kept_for=None)
