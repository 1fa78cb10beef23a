"""Contents and attention of shadow rows, compared with the rule position by position."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import context_of

from lopa.runtime.state.branch import Block, BlockState, Branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.packed_rows import PackedRows, pack_rows
from lopa.runtime.state.shadow_rows import with_shadow_rows

MASK, PROMPT, SIZE = 2, 5, 4


def anchor_with(unmasked: list[bool], *, due: bool) -> Branch:
    """Return an anchor with a prompt of 5, due or cached, and two active blocks of 4.

    An unmasked position holds 100 + its number.
    """
    flags = np.array([True] * PROMPT + unmasked)
    tokens = np.where(flags, 100 + np.arange(len(flags)), MASK)
    state = BlockState.TO_CACHE if due else BlockState.IN_CACHE
    blocks = (
        Block(0, PROMPT, 0, state, True),
        Block(5, 9, int((~flags[5:9]).sum()), BlockState.ACTIVE, True),
        Block(9, 13, int((~flags[9:13]).sum()), BlockState.ACTIVE, False),
    )
    return Branch(tokens, flags, blocks, False, None, Layout(PROMPT, PROMPT, SIZE, 13))


def with_another_block(branch: Branch) -> Branch:
    masks = np.full(SIZE, MASK)
    return Branch(
        np.concatenate([branch.tokens, masks]),
        np.concatenate([branch.unmasked, masks < 0]),
        (*branch.blocks, Block(13, 17, SIZE, BlockState.ACTIVE, False)),
        False,
        None,
        Layout(PROMPT, PROMPT, SIZE, 17),
    )


def context_with(shift: int, attention: str = "full") -> Context:
    return context_of(mask_token=MASK, prediction_shift=shift, attention=attention)


def shadowed(branches: tuple[Branch, ...], context: Context) -> tuple[PackedRows, PackedRows]:
    """Return the rows without shadow rows, and with shadow rows of all unmasked positions of active blocks."""
    anchor = branches[-1]
    verified = np.concatenate(
        [block.start + np.flatnonzero(anchor.unmasked[block.start : block.end]) for block in anchor.active]
    )
    plain = pack_rows(branches, context)
    return plain, with_shadow_rows(plain, anchor, verified, context)


def block_of(position: int) -> int:
    return 0 if position < PROMPT else 1 + (position - PROMPT) // SIZE


@pytest.mark.parametrize("attention", ["full", "block_causal"])
@pytest.mark.parametrize("shift", [0, 1])
@given(unmasked=st.lists(st.booleans(), min_size=8, max_size=8), due=st.booleans(), longer=st.booleans())
@settings(max_examples=30)
def test_shadow_rows_follow_the_rule(attention: str, shift: int, unmasked: list[bool], due: bool, longer: bool) -> None:
    anchor = anchor_with(unmasked, due=due)
    other = with_another_block(anchor) if longer else anchor
    plain, packed = shadowed((other, anchor), context_with(shift, attention))
    verified = [p for p in range(PROMPT, 13) if anchor.unmasked[p]]
    real, start, rows = plain.lengths[-1], packed.prefix, len(plain.input_ids)
    assert packed.remaskable.tolist() == verified
    assert packed.lengths == packed.branch_lengths == (plain.lengths[0], real + len(verified))

    # Everything else is unchanged, on every branch.
    np.testing.assert_array_equal(packed.input_ids[:rows], plain.input_ids)
    np.testing.assert_array_equal(packed.positions[:rows], plain.positions)
    mask = packed.masks[-1]
    np.testing.assert_array_equal(packed.masks[0], plain.masks[0])
    np.testing.assert_array_equal(mask[:real, :real], plain.masks[-1])
    assert not mask[:real, real:].any(), "no real row attends to a shadow row"

    for number, position in enumerate(verified):
        row, stands_for = real + number, position - shift
        assert packed.positions[rows + number] == stands_for
        assert packed.input_ids[rows + number] == (anchor.tokens[stands_for] if shift else MASK)
        for key in range(real):
            at = start + key
            reaches = attention == "full" or block_of(at) <= block_of(stands_for)
            assert mask[row, key] == (reaches and at not in (position, stands_for))
        for another, that in enumerate(verified):
            sees = that == position or (shift == 0 and block_of(that) == block_of(position))
            assert mask[row, real + another] == sees

    # Sampled positions of each branch, and the rows that predict them.
    columns = len(plain.column_positions)
    assert packed.remaskable_columns == slice(columns, columns + len(verified))
    assert packed.column_positions.tolist() == [*plain.column_positions.tolist(), *verified]
    assert packed.column_rows.tolist() == [*plain.column_rows.tolist(), *range(rows, rows + len(verified))]
    assert all(packed.sampled_columns(branch) == plain.sampled_columns(branch) for branch in range(2))


def test_without_positions_to_verify_nothing_is_added() -> None:
    plain, packed = shadowed((anchor_with([False] * 8, due=False),), context_with(1))
    for name in ("input_ids", "positions", "mask", "lengths", "column_positions", "column_rows", "branch_columns"):
        np.testing.assert_array_equal(getattr(packed, name), getattr(plain, name))
    assert not len(packed.remaskable)
