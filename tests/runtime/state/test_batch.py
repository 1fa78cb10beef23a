"""Forwards of several requests: properties of padding, and engines that ignore it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tools.random_configs import random_config, random_prompt

from lopa.runtime.contract import TOP_K, Statistics, WindowBatch
from lopa.runtime.decoder import Decoder
from lopa.runtime.requests.pool import RequestPool
from lopa.runtime.requests.prefix_tree import PrefixTree
from lopa.runtime.requests.result import DoneEvent
from lopa.runtime.state.batch import MAX_PADDING, batch_from_windows, groups_from_windows, rows_of_windows
from lopa.runtime.state.windows import Windows

sizes = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40)), min_size=1, max_size=12)
shares = st.sampled_from([0.0, 0.25, MAX_PADDING, 2.0])


def random_windows(rng: np.random.Generator, branches: int, width: int) -> Windows:
    queries, start = int(rng.integers(1, width + 1)), int(rng.integers(0, 100))
    sampled = start + 1 + rng.integers(0, width, (branches, queries))
    return Windows(
        prefix=start,
        commit=0,
        input_ids=rng.integers(3, 900, (branches, width)),
        positions=rng.integers(0, 900, (branches, width)),
        mask=rng.random((branches, width, width)) < 0.5,
        lengths=(width,) * branches,
        sampled=(np.arange(start, start + queries),) * branches,
        logits_positions=sampled,
        logits_index=sampled - 1 - start,
        from_kept_row=np.zeros((branches, queries), np.bool_),
        kept_columns=0,
    )


def padding_of(windows: Sequence[Windows], group: Sequence[int]) -> float:
    """Return the padding rows of a group as a share of its real rows."""
    shapes = [windows[i].input_ids.shape for i in group]
    rows = len(group) * max(b for b, _ in shapes) * max(w for _, w in shapes)
    real = sum(b * w for b, w in shapes)
    return rows / real - 1


@given(sizes, shares)
def test_groups_contain_every_request_once_with_little_padding(shapes: list[tuple[int, int]], share: float) -> None:
    rng = np.random.default_rng(0)
    windows = [random_windows(rng, *shape) for shape in shapes]
    groups = groups_from_windows(windows, share)
    assert sorted(index for group in groups for index in group) == list(range(len(windows)))
    assert all(padding_of(windows, group) <= share + 1e-9 for group in groups)
    for shape in set(shapes):
        alike = {i for i, each in enumerate(shapes) if each == shape}
        assert any(alike <= set(group) for group in groups) or share > 0
    assert len(groups_from_windows(windows, float("inf"))) == 1


def test_without_padding_every_size_has_its_own_forward() -> None:
    rng = np.random.default_rng(1)
    windows = [random_windows(rng, *shape) for shape in [(1, 5), (4, 8), (1, 5), (4, 8), (2, 8)]]
    assert groups_from_windows(windows, 0) == ((1, 3), (4,), (0, 2))
    assert groups_from_windows([], 0) == ()


@settings(deadline=None, max_examples=40)
@given(sizes)
def test_a_batch_contains_every_window_and_returns_its_rows(shapes: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(len(shapes))
    windows = [random_windows(rng, *shape) for shape in shapes]
    temperatures = [float(t) for t in rng.choice([0.0, 0.5, 2.0], len(windows))]
    batch = batch_from_windows(windows, range(7, 7 + len(windows)), temperatures)
    answer = echo(batch)
    for slot, each in enumerate(windows):
        branches, width = each.input_ids.shape
        np.testing.assert_array_equal(batch.input_ids[slot, :branches, :width], each.input_ids)
        np.testing.assert_array_equal(batch.window_mask[slot, :branches, :width, :width], each.mask)
        np.testing.assert_array_equal(batch.position_ids[slot, :branches, :width], each.positions)
        assert not batch.window_mask[slot, :branches, :width, width:].any()
        assert batch.temperature[slot] == (temperatures[slot] or 1.0)
        rows = rows_of_windows(answer, slot, each)
        np.testing.assert_array_equal(
            rows.topk_ids[..., 0], np.take_along_axis(each.input_ids, each.logits_index, axis=1)
        )
        np.testing.assert_array_equal(rows.entropy, rows.topk_logprobs[..., 0])
    itself = np.broadcast_to(np.eye(batch.input_ids.shape[2], dtype=np.bool_), batch.window_mask.shape)
    cells = padding_cells(batch, windows)
    np.testing.assert_array_equal(batch.window_mask[cells], itself[cells])


def echo(batch: WindowBatch) -> Statistics:
    """Return statistics that identify their row."""
    sampled = np.take_along_axis(batch.input_ids, batch.logits_index, axis=2)
    ids = np.repeat(sampled[..., None], TOP_K, axis=-1)
    return Statistics(ids, ids.astype(np.float32), sampled.astype(np.float32))


def padding_cells(batch: WindowBatch, windows: Sequence[Windows]) -> np.ndarray:
    """Return [R, B, W]: True where no request has a row."""
    cells = np.ones(batch.input_ids.shape, np.bool_)
    for slot, each in enumerate(windows):
        branches, width = each.forward_rows.input_ids.shape
        cells[slot, :branches, :width] = False
    return cells


def test_garbage_in_padding_changes_no_token(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = np.random.default_rng(6)
    padded = 0

    def batch_with_garbage(
        windows: Sequence[Windows], requests: Sequence[int], temperatures: Sequence[float]
    ) -> WindowBatch:
        nonlocal padded
        batch = batch_from_windows(windows, requests, temperatures)
        cells = padding_cells(batch, windows)
        padded += int(cells.sum())
        index = garbage.integers(0, cells.shape[2], batch.logits_index.shape)
        for slot, each in enumerate(windows):
            given = each.forward_rows.logits_index
            index[slot, : given.shape[0], : given.shape[1]] = given
        return dataclasses.replace(
            batch,
            input_ids=np.where(cells, garbage.integers(0, 900, cells.shape), batch.input_ids),
            position_ids=np.where(cells, garbage.integers(0, 2000, cells.shape), batch.position_ids),
            logits_index=index,
        )

    monkeypatch.setattr("lopa.runtime.requests.pool.batch_from_windows", batch_with_garbage)
    rng = np.random.default_rng(5)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        for _ in range(3):
            submitted = [(random_prompt(rng, decoder), random_config(rng, decoder)) for _ in range(5)]
            pool = RequestPool(
                decoder.session,
                decoder.bundle.manifest,
                decoder.tokenizer,
                PrefixTree(0),
                max_padding=float("inf"),
            )
            jobs = [decoder._job(prompt, config) for prompt, config in submitted]
            for job in jobs:
                pool.add(job)
            while len(pool):
                pool.step()
            for job, (prompt, config) in zip(jobs, submitted, strict=True):
                *_, last = decoder.stream(prompt, config)
                assert isinstance(last, DoneEvent)
                assert dataclasses.replace(job.handle.result(0), seconds=0) == dataclasses.replace(
                    last.result, seconds=0
                )
    assert padded > 1000
