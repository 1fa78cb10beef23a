"""Packed rows, and the same rows as padded windows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.runtime.random_windows import random_batch

from lopa.runtime.contract import Bool, Statistics, check_batch
from lopa.runtime.contract.packed_batch import PackedBatch, PaddedBatch, check_packed, packed_batch, padded_batch


def random_rows(rng: np.random.Generator, windows: list[list[int]]) -> PackedBatch:
    """Return rows of windows of the given lengths, by request; some windows sample no row."""
    lengths = np.array([length for each in windows for length in each])
    starts = np.cumsum(lengths) - lengths
    sampled = [
        start + rng.integers(0, length, rng.integers(0, length + 1))
        for start, length in zip(starts, lengths, strict=True)
    ]
    sampled[-1] = np.append(sampled[-1], starts[-1])  # at least one
    rows = int(lengths.sum())
    return PackedBatch(
        requests=tuple(range(7, 7 + len(windows))),
        temperature=rng.uniform(0.5, 2, len(windows)).astype(np.float32),
        slots=np.repeat(np.arange(len(windows)), [len(each) for each in windows]),
        lengths=lengths,
        input_ids=rng.integers(1, 900, rows),
        position_ids=rng.integers(1, 900, rows),
        mask=rng.random(int((lengths**2).sum())) < 0.5,
        sampled_rows=np.concatenate(sampled),
    )


@pytest.mark.parametrize("windows", [[[3, 5], [4], [2, 2, 6]], [[1]], [[4, 4], [4, 4]], [[2], [2, 1]]])
def test_padded_windows_have_the_rows(windows: list[list[int]]) -> None:
    rng = np.random.default_rng(len(windows))
    for _ in range(20):
        rows = random_rows(rng, windows)
        check_packed(rows)
        padded = padded_batch(rows)
        check_batch(padded.batch)
        assert padded.batch.input_ids.shape[1:] == (max(map(len, windows)), max(map(max, windows)))
        row = square = 0
        for slot, lengths in enumerate(windows):
            for branch, length in enumerate(lengths):
                own = slice(row, row + length)
                assert np.array_equal(padded.batch.input_ids[slot, branch, :length], rows.input_ids[own])
                assert np.array_equal(padded.batch.position_ids[slot, branch, :length], rows.position_ids[own])
                mask = rows.mask[square : square + length**2].reshape(length, length)
                assert np.array_equal(padded.batch.window_mask[slot, branch], _with_padding(padded, mask))
                row, square = row + length, square + length**2
            for branch in range(len(lengths), padded.batch.input_ids.shape[1]):
                assert np.array_equal(padded.batch.window_mask[slot, branch], _with_padding(padded, mask[:0, :0]))


def _with_padding(padded: PaddedBatch, mask: Bool) -> Bool:
    width = padded.batch.input_ids.shape[2]
    whole = np.eye(width, dtype=np.bool_)
    whole[: len(mask), : len(mask)] = mask
    return whole


@pytest.mark.parametrize("windows", [[[3, 5], [4], [2, 2, 6]], [[1]], [[4, 4], [4, 4]]])
def test_sampled_rows_get_their_statistics_in_order(windows: list[list[int]]) -> None:
    rng = np.random.default_rng(len(windows))
    for _ in range(20):
        rows = random_rows(rng, windows)
        padded = padded_batch(rows)
        named = np.arange(padded.batch.input_ids.size).reshape(padded.batch.input_ids.shape)  # a number for each row
        found = np.take_along_axis(named, padded.batch.logits_index, axis=2)
        ids = np.repeat(found[..., None], 8, axis=3)
        packed = padded.packed(
            Statistics(ids, ids.astype(np.float32), found.astype(np.float32), ids.astype(np.float32))
        )
        window = np.searchsorted(rows.starts, rows.sampled_rows, side="right") - 1
        expected = named[rows.slots[window], rows.window_numbers[window], rows.sampled_rows - rows.starts[window]]
        assert np.array_equal(packed.topk_ids, np.repeat(expected[:, None], 8, axis=1))
        assert np.array_equal(packed.entropy, expected.astype(np.float32))
        assert packed.logits is not None
        assert packed.logits.shape == (len(expected), 8)


def test_padded_windows_come_back() -> None:
    rng = np.random.default_rng(0)
    batch = random_batch(rng, (3, 1), branches=2, width=5, queries=3)
    again = padded_batch(packed_batch(batch))
    assert again.places is None
    for name in ("requests", "input_ids", "position_ids", "window_mask", "logits_index", "temperature"):
        assert np.array_equal(getattr(again.batch, name), getattr(batch, name)), name


def test_malformed_rows_are_refused_by_name() -> None:
    rows = random_rows(np.random.default_rng(0), [[3, 5], [4]])
    wrong: dict[str, Any] = {
        "requests": (7, 7),
        "temperature": rows.temperature[:1],
        "slots": np.array([0, 0, 2]),
        "lengths": np.array([3, 5, 0]),
        "input_ids": rows.input_ids[:-1],
        "position_ids": rows.position_ids[:-1],
        "mask": rows.mask[:-1],
        "sampled_rows": np.array([4, 0]),
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match="received"):
            check_packed(replace(rows, **{name: value}))
    for sampled in ([], [-1], [12]):
        with pytest.raises(ValueError, match="sampled_rows"):
            check_packed(replace(rows, sampled_rows=np.array(sampled, np.int64)))
