"""Rows that several branches share: properties, compared with a trace of each row, and engines."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.row_sharing import always
from lopa.runtime.state.packed_rows import KEPT_ROW, PackedRows, rows_of_anchor, with_shared_rows

LAYERS = 4
"""Number of layers through which a row is traced."""
Row = int


def rows_of(
    rng: np.random.Generator,
    *,
    block: int,
    changes: int,
    commit: int,
    attention: str = "block_causal",
    lengths: tuple[int, ...] | None = None,
) -> PackedRows:
    """Return branches of at most 12 rows on the anchor's tokens, each with some different tokens.

    Rows attend to blocks of `block` up to their own, to everything ("full"), or only to themselves ("itself").
    """
    branches, width, start = int(rng.integers(2, 6)), 12, int(rng.integers(0, 50))
    if lengths is None:
        lengths = tuple(int(rng.integers(max(1, commit), width + 1)) for _ in range(branches))
    width = max(lengths)
    anchor = rng.integers(3, 900, width)
    number = np.arange(width) // block
    seen = {
        "block_causal": number[:, None] >= number[None, :],
        "full": np.ones((width, width), np.bool_),
        "itself": np.eye(width, dtype=np.bool_),
    }[attention]
    ids, column_rows, sampled, begin = [], [], [], 0
    for branch, length in enumerate(lengths):
        ids.append(anchor[:length].copy())
        if branch < len(lengths) - 1 and commit < length:
            ids[-1][rng.integers(commit, length, changes)] = rng.integers(3, 900, changes)
        sampled.append(np.sort(rng.permutation(length)[: int(rng.integers(0, length + 1))]))
        column_rows += [begin + commit - 1] * (commit > 0) + [begin + row for row in sampled[-1].tolist()]
        begin += length
    positions = np.concatenate([start + np.arange(length) for length in lengths])
    rows = np.array(column_rows, np.int64)
    return PackedRows(
        prefix=start,
        commit=commit,
        lengths=lengths,
        branch_lengths=lengths,
        input_ids=np.concatenate(ids),
        positions=positions,
        mask=np.concatenate([seen[:length, :length].ravel() for length in lengths]),
        sampled=tuple(start + rows for rows in sampled),
        kept_columns=int(commit > 0),
        column_positions=positions[rows],
        column_rows=np.where(rng.random(len(rows)) < 0.1, KEPT_ROW, rows),
    )


def traced(input_ids: Int64, positions: Int64, mask: Bool) -> list[Row]:
    """Return a number for each row [W]; numbers are equal exactly if all dependencies through LAYERS layers are
    equal."""
    rows = [hash(pair) for pair in zip(input_ids.tolist(), positions.tolist(), strict=True)]
    for _ in range(LAYERS):
        rows = [
            hash((row, tuple(sorted(rows[key] for key in np.flatnonzero(mask[query])))))
            for query, row in enumerate(rows)
        ]
    return rows


examples = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(0, 4),
    st.sampled_from(["block_causal", "block_causal", "full", "itself"]),
)


@settings(deadline=None, max_examples=60)
@given(examples)
def test_a_shared_window_contains_every_row_once(example: tuple[int, int, int, int, str]) -> None:
    seed, block, changes, commit, attention = example
    rows = rows_of(np.random.default_rng(seed), block=block, changes=changes, commit=commit, attention=attention)
    ends = np.cumsum(rows.lengths)[:-1]
    windows = zip(np.split(rows.input_ids, ends), np.split(rows.positions, ends), rows.masks, strict=True)
    apart = [traced(*each) for each in windows]
    known = set(apart[-1])
    own = [row for branch in apart[:-1] for row in branch]
    fewest = len(apart[-1]) + sum(row not in known for row in own)

    shared = with_shared_rows(rows, always)
    if shared is rows:
        due = {tuple(window[:commit]) for window in apart}
        assert fewest >= len(rows.lengths) * max(rows.lengths) or len(due) > 1
        return
    assert shared.lengths == (fewest,)
    assert fewest < rows.input_ids.size or len({*rows.lengths}) > 1
    same = ("prefix", "commit", "branch_lengths", "sampled", "kept_columns", "column_positions", "is_final")
    assert all(getattr(shared, name) is getattr(rows, name) for name in same)
    together = traced(shared.input_ids, shared.positions, shared.masks[0])
    assert len(together) == len(shared.input_ids) == fewest
    separate = [row for branch in apart for row in branch]
    np.testing.assert_array_equal(shared.from_kept_row, rows.from_kept_row)
    answered: set[int] = set()
    for column in np.flatnonzero(~rows.from_kept_row):
        row = int(shared.sampled_rows[column if shared.answers is None else shared.answers[column]])
        answered.add(row)
        assert together[row] == separate[rows.column_rows[column]]
    assert shared.sampled_rows.tolist() == (sorted(answered) or [0]), "every sampled row occurs once, and no other"
    for branch, window in enumerate(apart):
        assert together[shared.rows_to_commit(branch)] == window[:commit]
        assert shared.window_of(branch) == 0
        assert rows.window_of(branch) == branch
        first = sum(rows.lengths[:branch])
        assert rows.rows_to_commit(branch) == slice(first, first + commit)


def test_sharing_needs_more_than_equal_tokens() -> None:
    """A change in the second of three blocks makes that block and the third one differ from the anchor's."""
    rows = rows_of(np.random.default_rng(3), block=4, changes=0, commit=0, lengths=(12, 12))
    block = (np.arange(12) < 4).tolist() + [True] * 12
    assert rows_of_anchor(rows).all()
    rows.input_ids[5] += 1
    assert rows_of_anchor(rows).tolist() == block
    rows.input_ids[5] -= 1
    rows.positions[5] += 1
    assert rows_of_anchor(rows).tolist() == block
    rows.positions[5] -= 1
    rows.masks[0][5, 0] = False
    assert rows_of_anchor(rows).tolist() == block


def test_windows_stay_separate_if_due_rows_differ_or_the_rule_says_no() -> None:
    rows = rows_of(np.random.default_rng(4), block=4, changes=0, commit=4)
    assert len(with_shared_rows(rows, always).lengths) == 1
    assert with_shared_rows(rows, lambda *_: False) is rows
    rows.input_ids[3] += 1
    assert with_shared_rows(rows, always) is rows
    alone = rows_of(np.random.default_rng(4), block=4, changes=0, commit=4, lengths=(8,))
    assert with_shared_rows(alone, always) is alone
