"""Contents and attention of shadow rows, compared with the rule position by position."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plans import context_of

from lopa.runtime.contract import Statistics
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.state.batch import batch_from_windows, rows_of_windows, with_shared_rows
from lopa.runtime.state.branch import Block, BlockState, Branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.shadow_rows import with_shadow_rows
from lopa.runtime.state.windows import Windows, windows_from_branches

MASK, PAD, PROMPT, SIZE = 2, 9, 5, 4


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


def context_with(shift: int, window: str = "full") -> Context:
    return replace(context_of(mask_token=MASK, prediction_shift=shift, window=window), pad_token=PAD)


def shadowed(branches: tuple[Branch, ...], context: Context) -> tuple[Windows, Windows]:
    """Return the windows without shadow rows, and with shadow rows of all unmasked positions of active blocks."""
    anchor = branches[-1]
    verified = np.concatenate(
        [block.start + np.flatnonzero(anchor.unmasked[block.start : block.end]) for block in anchor.active]
    )
    plain = windows_from_branches(branches, context)
    return plain, with_shadow_rows(plain, anchor, verified, context)


def block_of(position: int) -> int:
    return 0 if position < PROMPT else 1 + (position - PROMPT) // SIZE


@pytest.mark.parametrize("window", ["full", "block_causal"])
@pytest.mark.parametrize("shift", [0, 1])
@given(unmasked=st.lists(st.booleans(), min_size=8, max_size=8), due=st.booleans(), longer=st.booleans())
@settings(max_examples=30)
def test_shadow_rows_follow_the_rule(window: str, shift: int, unmasked: list[bool], due: bool, longer: bool) -> None:
    anchor = anchor_with(unmasked, due=due)
    other = with_another_block(anchor) if longer else anchor
    plain, windows = shadowed((other, anchor), context_with(shift, window))
    verified = [p for p in range(PROMPT, 13) if anchor.unmasked[p]]
    real, start = plain.lengths[-1], windows.prefix
    width = windows.input_ids.shape[1]
    assert windows.remaskable.tolist() == verified
    assert windows.lengths == (plain.lengths[0], real + len(verified))
    assert width == max(windows.lengths)

    # Everything else is unchanged, on every branch.
    old = plain.input_ids.shape[1]
    np.testing.assert_array_equal(windows.input_ids[0, :old], plain.input_ids[0])
    np.testing.assert_array_equal(windows.mask[:, :real, :real], plain.mask[:, :real, :real])
    np.testing.assert_array_equal(windows.mask[0, :old, :old], plain.mask[0])
    np.testing.assert_array_equal(windows.input_ids[-1, :real], plain.input_ids[-1, :real])
    np.testing.assert_array_equal(windows.positions[-1, :real], plain.positions[-1, :real])
    for query in range(width):
        if query >= windows.lengths[0]:
            assert np.flatnonzero(windows.mask[0, query]).tolist() == [query], "padding attends to itself"
        if query >= windows.lengths[1]:
            assert np.flatnonzero(windows.mask[1, query]).tolist() == [query]
    assert not windows.mask[-1, :real, real:].any(), "no real row attends to a shadow row"

    for number, position in enumerate(verified):
        row, stands_for = real + number, position - shift
        assert windows.positions[-1, row] == stands_for
        assert windows.input_ids[-1, row] == (anchor.tokens[stands_for] if shift else MASK)
        for key in range(real):
            at = start + key
            reaches = window == "full" or block_of(at) <= block_of(stands_for)
            assert windows.mask[-1, row, key] == (reaches and at not in (position, stands_for))
        for another, that in enumerate(verified):
            sees = that == position or (shift == 0 and block_of(that) == block_of(position))
            assert windows.mask[-1, row, real + another] == sees

    # Sampled positions of each branch, and the rows that predict them.
    for branch in range(2):
        end = plain.kept_columns + len(plain.sampled[branch])
        np.testing.assert_array_equal(windows.logits_positions[branch, :end], plain.logits_positions[branch, :end])
        np.testing.assert_array_equal(windows.logits_index[branch, :end], plain.logits_index[branch, :end])
        np.testing.assert_array_equal(windows.from_kept_row[branch, :end], plain.from_kept_row[branch, :end])
    columns = slice(
        plain.kept_columns + len(plain.sampled[-1]), plain.kept_columns + len(plain.sampled[-1]) + len(verified)
    )
    assert windows.logits_positions[-1, columns].tolist() == verified
    assert windows.logits_index[-1, columns].tolist() == list(range(real, real + len(verified)))
    assert not windows.from_kept_row[-1, columns].any()


def test_without_positions_to_verify_nothing_is_added() -> None:
    plain, windows = shadowed((anchor_with([False] * 8, due=False),), context_with(1))
    for name in (
        "input_ids",
        "positions",
        "mask",
        "lengths",
        "logits_positions",
        "logits_index",
        "from_kept_row",
        "counts",
    ):
        np.testing.assert_array_equal(getattr(windows, name), getattr(plain, name))
    assert not len(windows.remaskable)


@given(unmasked=st.lists(st.booleans(), min_size=8, max_size=8), due=st.booleans())
@settings(max_examples=30)
def test_a_shared_window_includes_shadow_rows(unmasked: list[bool], due: bool) -> None:
    """Every sampled row is found by its token, its position and the rows that it attends to."""
    anchor = anchor_with(unmasked, due=due)
    ahead = with_another_block(anchor)
    ahead.tokens[13] = 55
    _, windows = shadowed((ahead, anchor), context_with(1, "block_causal"))
    shared = with_shared_rows(windows, lambda *_: True)
    if shared.shared is None:
        return
    answers = []
    for each in (windows, shared):
        batch = batch_from_windows([each], [1], [0.0])
        identities = np.take_along_axis(
            _identities_of_rows(batch.input_ids, batch.position_ids, batch.window_mask), batch.logits_index, axis=2
        )
        rows = rows_of_windows(
            Statistics(identities[..., None], identities[..., None].astype(np.float32), identities.astype(np.float32)),
            0,
            each,
        )
        answers.append(_needed(windows, rows))
    assert answers[0] == answers[1]


def _identities_of_rows(ids: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return a number for each row, [R, B, W], that identifies its token, its position and the rows it attends to."""
    own = ids * 1009 + positions
    return own * 100_003 + (mask * (own**2 % 99_991)[:, :, None, :]).sum(axis=-1)


def _needed(windows: Windows, rows: RowStatistics) -> list[list[int]]:
    return [
        [int(rows.topk_ids[branch, column, 0]) for column in range(count) if not windows.from_kept_row[branch, column]]
        for branch, count in enumerate(windows.counts)
    ]
