"""Forwards that are split into parts, and concatenation of the results."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.random_windows import random_batch

from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import branch_part_count, micro_batches, split_branches


@given(st.integers(1, 40), st.integers(1, 20))
def test_every_branch_is_assigned_to_one_device(branches: int, devices: int) -> None:
    shares = split_branches(branches, devices)
    assert len(shares) == devices
    assert [branch for share in shares for branch in range(branches)[share]] == list(range(branches))
    sizes = [len(range(branches)[share]) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == max(sizes)


@pytest.mark.parametrize(("branches", "devices"), [(0, 2), (3, 0), (-1, 1)])
def test_counts_below_one_raise(branches: int, devices: int) -> None:
    with pytest.raises(ValueError, match="expected at least one"):
        split_branches(branches, devices)


@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 8))
def test_every_window_is_in_one_part(requests: int, branches: int, wanted: int) -> None:
    parts = micro_batches(requests, branches, wanted)
    windows = np.arange(requests * branches).reshape(requests, branches)
    assert [n for part in parts for n in windows[part].ravel()] == list(windows.ravel())
    sizes = [windows[part].size for part in parts]
    assert 0 not in sizes
    assert min(wanted, requests * branches) <= len(parts) < 2 * wanted
    if requests == 1 or requests >= wanted:
        assert len(parts) == min(wanted, requests * branches)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_micro_batch_statistics_keep_window_order(requests: int, branches: int, wanted: int, logits: bool) -> None:
    batch = random_batch(np.random.default_rng(requests * branches), range(10, 10 + requests), branches, 4, 3)
    parts = micro_batches(requests, branches, wanted)
    cut = [batch.part(*part) for part in parts]
    found = Statistics.joined([_echo(each, with_logits=logits) for each in cut], branch_part_count(parts))
    _assert_equal(found, _echo(batch, with_logits=logits))
    for part, each in zip(parts, cut, strict=True):
        assert each.requests == batch.requests[part.requests]
        np.testing.assert_array_equal(each.temperature, batch.temperature[part.requests])
        for name in ("input_ids", "position_ids", "window_mask", "logits_index"):
            np.testing.assert_array_equal(getattr(each, name), getattr(batch, name)[part])


def _echo(batch: WindowBatch, *, with_logits: bool) -> Statistics:
    """Return statistics that differ for every window: the token ids at the sampled positions."""
    wanted = np.take_along_axis(batch.input_ids, batch.logits_index, axis=2)
    repeated = np.repeat(wanted[..., None], 8, axis=-1)
    values = repeated.astype(np.float32)
    return Statistics(repeated, values, values[..., 0], values if with_logits else None)


def _assert_equal(found: Statistics, expected: Statistics) -> None:
    for name in ("topk_ids", "topk_logprobs", "entropy", "logits"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("with_logits", [False, True])
def test_branch_statistics_are_concatenated_in_order(devices: int, *, with_logits: bool) -> None:
    batch = random_batch(np.random.default_rng(devices), [4, 7], 5, 6, 3)
    cut = [batch.part(branches=share) for share in split_branches(5, devices)]
    assert all(each.requests == (4, 7) for each in cut)
    found = Statistics.joined([_echo(each, with_logits=with_logits) for each in cut])
    _assert_equal(found, _echo(batch, with_logits=with_logits))
