"""Computed and cached rows of a round, for each kind of cache."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.params import branch_of, context_of

from lopa.runtime.state.branch import Branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import rows_from_branch
from lopa.runtime.state.pipeline import after_round, with_next_block

PROMPT = 3


def branch_in_round(number: int, unmasked: list[int], context: Context, *, prompt: int = PROMPT) -> Branch:
    """Return round `number`, from 0, of a prompt and a block of 8 with positions unmasked so far."""
    branch = branch_of(np.arange(prompt), context)
    for _ in range(number):
        later = replace(branch, blocks=after_round(branch))
        branch = with_next_block(later, context)
    branch.unmasked[unmasked] = True
    return branch


@pytest.mark.parametrize(
    ("cache", "number", "unmasked", "prefix", "order", "commit", "lasting"),
    [
        ("blocks", 0, [], 0, range(11), 3, True),
        ("blocks", 1, [3], 3, range(3, 11), 0, True),
        ("none", 0, [], 0, range(19), 0, True),
        ("none", 1, [3], 0, range(19), 0, True),
        ("prefix", 0, [], 0, range(19), 3, False),
        ("prefix", 1, [3], 3, range(3, 19), 0, True),
        ("dual", 0, [], 0, [*range(3), *range(11, 19), *range(3, 11)], 11, False),
        ("dual", 1, [3], 11, range(3, 11), 0, True),
        ("sub_block", 0, [], 0, range(3), 3, True),  # the prompt is committed before the block opens
        ("sub_block", 1, [3], 3, [*range(7, 11), *range(3, 7)], 4, False),  # a block's first round has all its rows
        ("sub_block", 2, [4], 3, [*range(7, 11), *range(3, 7)], 4, False),  # its first position is masked
        ("sub_block", 2, [3], 7, range(3, 7), 0, True),
        ("sub_block", 3, [3, 4, 5, 6], 3, [*range(3, 7), *range(7, 11)], 4, False),
        ("sub_block", 3, [3, 4, 5, 6, 7], 7, range(7, 11), 0, True),
    ],
)
def test_rows_of_a_round(
    cache: Any, number: int, unmasked: list[int], prefix: int, order: Any, commit: int, lasting: bool
) -> None:
    context = context_of(
        mask_token=9, strategy="threshold", cache=cache, block_size=8, sub_block=4, max_new_tokens=16, attention="full"
    )
    branch = branch_in_round(number, unmasked, context)
    found = rows_from_branch(branch, branch, context.params)
    assert (len(found.cached), found.order.tolist(), found.commit) == (prefix, list(order), commit)
    assert found.is_final == lasting
    assert not set(found.cached.tolist()) & set(found.order.tolist())


@pytest.mark.parametrize(
    ("cache", "prompt", "number", "cached", "order", "commit"),
    [
        ("prefix", 3, 0, [], range(19), 2),
        ("prefix", 3, 1, range(2), range(2, 19), 0),
        ("prefix", 1, 0, [], range(17), 0),
        ("prefix", 1, 1, [], range(17), 0),
        ("dual", 3, 0, [], [*range(2), *range(11, 19), *range(2, 11)], 10),
        ("dual", 3, 1, [*range(2), *range(11, 19)], range(2, 11), 0),
        ("dual", 1, 1, range(9, 17), range(9), 0),
    ],
)
def test_a_block_includes_the_row_before_it_if_rows_predict_the_next_position(
    cache: Any, prompt: int, number: int, cached: Any, order: Any, commit: int
) -> None:
    context = context_of(
        mask_token=9,
        prediction_shift=1,
        strategy="threshold",
        cache=cache,
        block_size=8,
        max_new_tokens=16,
        attention="full",
    )
    branch = branch_in_round(number, [], context, prompt=prompt)
    found = rows_from_branch(branch, branch, context.params)
    assert (found.cached.tolist(), found.order.tolist(), found.commit) == (list(cached), list(order), commit)
