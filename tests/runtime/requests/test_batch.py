"""Forwards of several requests: properties of padding, and engines that ignore it."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.runtime.contract import TOP_K, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch, check_packed
from lopa.runtime.requests.running_loop import MAX_PADDING, batch_from_rows, columns_from_statistics, groups_from_rows
from lopa.runtime.state.packed_rows import PackedRows

sizes = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40)), min_size=1, max_size=12)
shares = st.sampled_from([0.0, 0.25, MAX_PADDING, 2.0])


def random_rows(rng: np.random.Generator, branches: int, width: int) -> PackedRows:
    """Return `branches` windows of `width` rows, some of them sampled, some of these by several columns."""
    counts, start = rng.integers(0, width + 1, branches), int(rng.integers(0, 100))
    columns = [np.sort(rng.integers(0, width, count)) for count in counts]
    return PackedRows(
        prefix=start,
        commit=0,
        lengths=(width,) * branches,
        branch_lengths=(width,) * branches,
        input_ids=rng.integers(3, 900, branches * width),
        positions=rng.integers(0, 900, branches * width),
        mask=rng.random(branches * width**2) < 0.5,
        sampled=tuple(start + 1 + own for own in columns),
        kept_columns=0,
        column_positions=start + 1 + np.concatenate(columns),
        column_rows=np.concatenate([width * branch + own for branch, own in enumerate(columns)]),
    )


def padding_of(requests: Sequence[PackedRows], group: Sequence[int]) -> float:
    """Return the padding rows of a group as a share of its real rows."""
    shapes = [(len(requests[i].lengths), max(requests[i].lengths)) for i in group]
    rows = len(group) * max(b for b, _ in shapes) * max(w for _, w in shapes)
    real = sum(b * w for b, w in shapes)
    return rows / real - 1


@given(sizes, shares)
def test_groups_contain_every_request_once_with_little_padding(shapes: list[tuple[int, int]], share: float) -> None:
    rng = np.random.default_rng(0)
    requests = [random_rows(rng, *shape) for shape in shapes]
    groups = groups_from_rows(requests, share)
    assert sorted(index for group in groups for index in group) == list(range(len(requests)))
    assert all(padding_of(requests, group) <= share + 1e-9 for group in groups)
    for shape in set(shapes):
        alike = {i for i, each in enumerate(shapes) if each == shape}
        assert any(alike <= set(group) for group in groups) or share > 0
    assert len(groups_from_rows(requests, float("inf"))) == 1


def test_without_padding_every_size_has_its_own_forward() -> None:
    rng = np.random.default_rng(1)
    requests = [random_rows(rng, *shape) for shape in [(1, 5), (4, 8), (1, 5), (4, 8), (2, 8)]]
    assert groups_from_rows(requests, 0) == ((1, 3), (4,), (0, 2))
    assert groups_from_rows([], 0) == ()


@settings(deadline=None, max_examples=40)
@given(sizes)
def test_a_batch_contains_every_row_and_returns_every_column(shapes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(len(shapes))
    requests = [random_rows(rng, *shape) for shape in shapes]
    temperatures = [float(t) for t in rng.choice([0.0, 0.5, 2.0], len(requests))]
    batch = batch_from_rows(requests, range(7, 7 + len(requests)), temperatures)
    check_packed(batch)
    assert batch.requests == tuple(range(7, 7 + len(requests)))
    assert batch.temperature.tolist() == [temperature or 1.0 for temperature in temperatures]
    assert batch.windows.tolist() == [branches for branches, _ in shapes]
    for name, own in (("input_ids", "input_ids"), ("position_ids", "positions"), ("mask", "mask")):
        np.testing.assert_array_equal(getattr(batch, name), np.concatenate([getattr(each, own) for each in requests]))
    for packed, columns in zip(requests, columns_from_statistics(echo(batch), requests), strict=True):
        np.testing.assert_array_equal(columns.topk_ids[:, 0], packed.input_ids[packed.column_rows])
        np.testing.assert_array_equal(columns.entropy, columns.topk_logprobs[:, 0])
        assert columns.logits is not None
        np.testing.assert_array_equal(columns.logits, columns.topk_logprobs)


def test_a_round_without_columns_samples_one_row() -> None:
    packed = random_rows(np.random.default_rng(2), 2, 5)
    none = np.empty(0, np.int64)
    packed = dataclasses.replace(packed, sampled=(none, none), column_positions=none, column_rows=none)
    batch = batch_from_rows([packed], [0], [0.0])
    assert batch.sampled_rows.tolist() == [0]
    (columns,) = columns_from_statistics(echo(batch), [packed])
    assert columns.topk_ids.shape == (0, TOP_K)


def echo(batch: PackedBatch) -> Statistics:
    """Return statistics [M, ...] that identify their row."""
    sampled = batch.input_ids[batch.sampled_rows]
    ids = np.repeat(sampled[:, None], TOP_K, axis=-1)
    return Statistics(ids, ids.astype(np.float32), sampled.astype(np.float32), ids.astype(np.float32))
