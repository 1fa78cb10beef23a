"""Rows that several branches share: properties, compared with a trace of each row, and engines."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.random_windows import assert_close

from lopa.bench.forward.random_inputs import random_prefix_rows
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Bool, Int64
from lopa.runtime.row_sharing import always
from lopa.runtime.sessions.session import open_session
from lopa.runtime.state.batch import batch_from_windows, rows_of_anchor, rows_of_windows, with_shared_rows
from lopa.runtime.state.windows import Windows

LAYERS = 4
"""Number of layers through which a row is traced."""
Row = int


def windows_of(
    rng: np.random.Generator, *, block: int, changes: int, commit: int, attention: str = "block_causal"
) -> Windows:
    """Return branches of at most 12 rows on the anchor's tokens, each with some different tokens.

    Padding holds the anchor's tokens. Rows attend to blocks of `block` up to their own, to everything ("full"), or only
    to themselves ("itself").
    """
    branches, width, start = int(rng.integers(2, 6)), 12, int(rng.integers(0, 50))
    lengths = tuple(int(rng.integers(max(1, commit), width + 1)) for _ in range(branches))
    width = max(lengths)
    input_ids = np.broadcast_to(rng.integers(3, 900, width), (branches, width)).copy()
    mask = np.zeros((branches, width, width), np.bool_)
    number = np.arange(width) // block
    seen = {
        "block_causal": number[:, None] >= number[None, :],
        "full": np.ones((width, width), np.bool_),
        "itself": np.eye(width, dtype=np.bool_),
    }[attention]
    for branch, length in enumerate(lengths):
        if branch < branches - 1 and commit < length:
            input_ids[branch, rng.integers(commit, length, changes)] = rng.integers(3, 900, changes)
        mask[branch, :length, :length] = seen[:length, :length]
        mask[branch, range(length, width), range(length, width)] = True
    positions = np.broadcast_to(start + np.arange(width), (branches, width)).copy()
    sampled = tuple(np.sort(rng.permutation(length)[: int(rng.integers(0, length + 1))]) for length in lengths)
    kept = 1 if commit else 0
    queries = max(1, kept + max(map(len, sampled)))
    index = np.zeros((branches, queries), np.int64)
    index[:, :kept] = commit - 1
    for branch, rows in enumerate(sampled):
        index[branch, kept : kept + len(rows)] = rows
    return Windows(
        prefix=start,
        commit=commit,
        input_ids=input_ids,
        positions=positions,
        mask=mask,
        lengths=lengths,
        sampled=tuple(start + rows for rows in sampled),
        logits_positions=start + index,
        logits_index=index,
        from_kept_row=rng.random(index.shape) < 0.1,
        kept_columns=kept,
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


@settings(deadline=None, max_examples=150)
@given(examples)
def test_a_shared_window_contains_every_row_once(example: tuple[int, int, int, int, str]) -> None:
    seed, block, changes, commit, attention = example
    windows = windows_of(np.random.default_rng(seed), block=block, changes=changes, commit=commit, attention=attention)
    apart = [traced(*each) for each in zip(windows.input_ids, windows.positions, windows.mask, strict=True)]
    known = set(apart[-1][: windows.lengths[-1]])
    own = [row for branch, length in enumerate(windows.lengths[:-1]) for row in apart[branch][:length]]
    fewest = windows.lengths[-1] + sum(row not in known for row in own)

    packed = with_shared_rows(windows, always)
    if packed.shared is None:
        due = {tuple(rows[:commit]) for rows in apart}
        assert fewest >= windows.input_ids.size or len(due) > 1
        return
    shared = packed.shared
    assert replace(packed, shared=None) == replace(windows, shared=None)
    together = traced(shared.input_ids[0], shared.positions[0], shared.mask[0])
    assert len(together) == fewest == packed.computed_rows < windows.input_ids.size
    counts = [windows.kept_columns + len(each) for each in windows.sampled]
    answered: set[int] = set()
    for branch, count in enumerate(counts):
        assert together[:commit] == apart[branch][:commit]
        for column in np.flatnonzero(~windows.from_kept_row[branch, :count]):
            row = int(shared.logits_index[0, shared.answers[branch, column]])
            answered.add(row)
            assert together[row] == apart[branch][windows.logits_index[branch, column]]
    assert shared.logits_index[0].tolist() == (sorted(answered) or [0]), "every sampled row occurs once, and no other"
    assert packed.branch_of_commit(len(counts) - 1) == 0


def test_sharing_needs_more_than_equal_tokens() -> None:
    """A change in the second of three blocks makes that block and the third one differ from the anchor's."""
    windows = windows_of(np.random.default_rng(3), block=4, changes=0, commit=0)
    branches = len(windows.lengths)
    windows = replace(windows, lengths=(windows.input_ids.shape[1],) * branches)
    number = np.arange(windows.input_ids.shape[1]) // 4
    windows.mask[:] = number[:, None] >= number[None, :]
    windows.input_ids[:] = windows.input_ids[-1]
    assert rows_of_anchor(windows).all()
    windows.input_ids[0, 5] += 1
    assert rows_of_anchor(windows)[0].tolist() == (number == 0).tolist()
    windows.input_ids[0, 5] -= 1
    windows.positions[0, 5] += 1
    assert rows_of_anchor(windows)[0].tolist() == (number == 0).tolist()
    windows.positions[0, 5] -= 1
    windows.mask[0, 5, 0] = False
    assert rows_of_anchor(windows)[0].tolist() == (number == 0).tolist()


def test_windows_stay_separate_if_due_rows_differ_or_the_rule_says_no() -> None:
    windows = windows_of(np.random.default_rng(4), block=4, changes=0, commit=4)
    assert with_shared_rows(windows, always).shared is not None
    assert with_shared_rows(windows, lambda *_: False) is windows
    windows.input_ids[0, 3] += 1
    assert with_shared_rows(windows, always) is windows
    alone = replace(windows, input_ids=windows.input_ids[-1:], lengths=windows.lengths[-1:])
    assert with_shared_rows(alone, always) is alone


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_an_engine_returns_and_commits_the_same_rows_for_several_requests(device: str, tiny_bundle: Path) -> None:
    """Requests of other sizes share the forward, so the shared window is padded too. One request does not share
    rows."""
    rng = np.random.default_rng(6)
    bundle = Bundle.open(tiny_bundle)
    session = open_session(bundle, device, threads=1)
    every = [windows_of(rng, block=4, changes=1, commit=4) for _ in range(4)]
    given = [*(with_shared_rows(each, always) for each in every[:3]), every[3]]
    assert all(each.shared is not None for each in given[:3])
    for request, windows in enumerate(every):
        session.append_rows(request, random_prefix_rows(bundle.manifest, windows.prefix + 1, rng))
    requests, temperatures = range(4), [0.0, 0.7, 1.0, 2.0]
    expected = session.forward(batch_from_windows(every, requests, temperatures))
    rows = [session.read_rows(request, 1, 4) for request in requests]
    found = session.forward(batch_from_windows(given, requests, temperatures))
    for slot, (one, other) in enumerate(zip(every, given, strict=True)):
        counts = np.array([one.kept_columns + len(each) for each in one.sampled])
        needed = (np.arange(one.logits_positions.shape[1]) < counts[:, None]) & ~one.from_kept_row
        apart, once = rows_of_windows(expected, slot, one)[needed], rows_of_windows(found, slot, other)[needed]
        np.testing.assert_allclose(once.topk_logprobs, apart.topk_logprobs, rtol=0, atol=1e-4)
        np.testing.assert_allclose(once.entropy, apart.entropy, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(once.topk_ids[..., 0], apart.topk_ids[..., 0])
        again = session.read_rows(slot, other.branch_of_commit(1), 4)
        for layer, before in zip(again.layers, rows[slot].layers, strict=True):
            assert_close(layer, before)
    session.close()
