"""Conversion to the portable form and back, compared with docs/concepts/contract.md number by number."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.random_windows import random_batch

from lopa.runtime import contract
from lopa.runtime.contract import WindowBatch
from lopa.runtime.contract.portable_form import (
    MASKED,
    portable_inputs,
    portable_past,
    rows_from_portable,
    statistics_from_portable,
)
from lopa.runtime.sessions.prefix_cache import CacheShape

SIZES = st.tuples(*(st.integers(1, maximum) for maximum in (3, 4, 5, 4)))


def _batch(sizes: tuple[int, ...], seed: int) -> tuple[np.random.Generator, WindowBatch]:
    rng = np.random.default_rng(seed)
    requests, branches, width, queries = sizes
    return rng, random_batch(rng, range(requests), branches, width, queries, starts=7)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(0, 1 << 30))
def test_inputs_match_the_contract(sizes: tuple[int, ...], seed: int) -> None:
    rng, batch = _batch(sizes, seed)
    requests, branches, width, queries = sizes
    prefix_mask = rng.random((requests, 6)) < 0.5
    found = portable_inputs(batch, prefix_mask)
    assert list(found) == contract.input_names(0)
    for name, array in found.items():
        expected = np.int64 if name in ("input_ids", "position_ids", "logits_index") else np.float32
        assert array.dtype == expected
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, getattr(batch, name, prefix_mask))
    rows = branches * width
    assert found["window_mask"].shape == (requests, 1, rows, rows)
    assert found["prefix_mask"].shape == (requests, 1, 1, 6)
    assert set(np.unique(found["window_mask"])) <= {0, np.float32(MASKED)}
    np.testing.assert_array_equal(found["prefix_mask"][:, 0, 0] == 0, prefix_mask)
    for r, b, w in product(range(requests), range(branches), range(width)):
        row = b * width + w
        assert found["input_ids"][r, row] == batch.input_ids[r, b, w]
        assert found["position_ids"][r, row] == batch.position_ids[r, b, w]
        seen = np.zeros((branches, width), np.bool_)
        seen[b] = batch.window_mask[r, b, w]
        np.testing.assert_array_equal(found["window_mask"][r, 0, row] == 0, seen.reshape(-1))
    flat_ids = found["input_ids"].reshape(-1)
    for number, (r, b, q) in enumerate(product(range(requests), range(branches), range(queries))):
        assert flat_ids[found["logits_index"][number]] == batch.input_ids[r, b, batch.logits_index[r, b, q]]
        assert found["logits_index"][number] // rows == r
        assert found["temperature"][number] == batch.temperature[r]


def test_prefix_shares_memory() -> None:
    """Head h of request r is at r x Hkv + h in every array."""
    rng = np.random.default_rng(8)
    prefix = CacheShape(arrays=6, kv_heads=3, head_size=4, dtype=np.dtype(np.float32)).zeros(2, 64)
    prefix.block[...] = rng.standard_normal(prefix.block.shape)
    past = portable_past(prefix.block)
    assert past.shape == (6, 6, 64, 4)
    assert np.shares_memory(past, prefix.block)
    for number, array in enumerate(prefix.arrays):
        for r, h in product(range(2), range(3)):
            np.testing.assert_array_equal(past[number, 3 * r + h], array[r, h])


@settings(max_examples=20, deadline=None)
@given(SIZES, st.integers(0, 1 << 30))
def test_outputs_match_the_contract(sizes: tuple[int, ...], seed: int) -> None:
    rng, batch = _batch(sizes, seed)
    requests, branches, width, queries = sizes
    wanted = requests * branches * queries
    outputs = {
        contract.TOPK_IDS: rng.integers(0, 99, (wanted, 8)),
        contract.TOPK_LOGPROBS: rng.standard_normal((wanted, 8)).astype(np.float32),
        contract.ENTROPY: rng.standard_normal(wanted).astype(np.float32),
        contract.LOGITS: rng.standard_normal((wanted, 24)).astype(np.float32),
    }
    statistics = statistics_from_portable(outputs, batch)
    rows = rng.standard_normal((requests, 2, branches * width, 3)).astype(np.float32)
    rows_of_branches = rows_from_portable(rows, branches)
    assert statistics.logits is not None
    assert rows_of_branches.shape == (requests, branches, 2, width, 3)
    for number, (r, b, q) in enumerate(product(range(requests), range(branches), range(queries))):
        for name, array in (
            (contract.TOPK_IDS, statistics.topk_ids),
            (contract.TOPK_LOGPROBS, statistics.topk_logprobs),
            (contract.ENTROPY, statistics.entropy),
            (contract.LOGITS, statistics.logits),
        ):
            np.testing.assert_array_equal(array[r, b, q], outputs[name][number])
    for r, b, w in product(range(requests), range(branches), range(width)):
        np.testing.assert_array_equal(rows_of_branches[r, b, :, w], rows[r, :, b * width + w])
    del outputs[contract.LOGITS]
    assert statistics_from_portable(outputs, batch).logits is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_masked_scores_get_no_weight_and_stay_finite(dtype: type[np.floating]) -> None:
    """Scores above 100 are common. In float16 the sum must not overflow, and masked keys must get no weight."""
    scores = np.array([[-300.0, 250.0, 40.0]], dtype) + np.array([[0.0, MASKED, MASKED]], dtype)
    assert np.isfinite(scores).all()
    weights = np.exp(scores.astype(np.float32) - scores.max())
    assert weights.tolist() == [[1.0, 0.0, 0.0]]
