"""The token statistics: the kernels against float64, and the references against the graph's own statistics."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, MANY, TYPES, Array, normal
from tests.plugins.token_statistics_reference import (
    statistics_merge_reference,
    statistics_partials_reference,
    token_statistics_reference,
)

from lopa.export.graph.module import statistics_of_logits
from lopa.runtime.contract import TOP_K

TOLERANCE = 2e-5
"""Tolerance of log-probability and entropy for every type: sums are nearly exact in float32."""
CASES = (
    st.integers(1, 2),
    st.sampled_from([8, 16, 32, 64]),
    st.integers(0, 700),
    st.integers(1, 4),
    st.sampled_from([128, 512]),
    st.sampled_from(list(TYPES)),
    st.integers(0, 1 << 30),
)


def _statistics(
    kernels: Kernels, logits: Array, temperature: Array, top: int = TOP_K, splits: int = 3, block: int = 64
) -> tuple[Array, ...]:
    """Run both kernels. With N / n temperatures, each applies to n consecutive rows."""
    rows, vocabulary = logits.shape
    columns = -(-vocabulary // splits)
    sums = [np.full((rows, splits), np.nan, np.float32) for _ in range(3)]
    ids, values = np.full((rows, splits, top), -7, np.int32), np.full((rows, splits, top), np.nan, np.float32)
    given = [logits, temperature, rows // len(temperature), vocabulary, columns, *sums, ids, values]
    found = kernels(kernel_calls.run, "statistics_partials", (rows, splits), given, {"TOP": top, "BLOCK": block})
    outputs = np.full((rows, top), -7, np.int64), np.full((rows, top), np.nan, np.float32)
    arguments = [*found[2:], splits, *outputs, np.full(rows, np.nan, np.float32)]
    places = 1 << (splits - 1).bit_length()
    return tuple(kernels(kernel_calls.run, "statistics_merge", (rows,), arguments, {"TOP": top, "PLACES": places})[-3:])


def _check(kernels: Kernels, rows: int, top: int, more: int, splits: int, block: int, floats: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = 3 * normal(rng, (rows, top + more), floats)
    temperature = rng.uniform(0.3, 2.0, rows).astype(np.float32)
    _assert_statistics(kernels, logits, temperature, top, splits, block)


def _assert_statistics(kernels: Kernels, logits: Array, temperature: Array, *choices: int) -> None:
    """Compare. Candidates whose z is equal in float64 or nearly so may be swapped, unless their logits are equal."""
    ids, logprobs, entropy = _statistics(kernels, logits, temperature, *choices)
    each = np.repeat(temperature, len(logits) // len(temperature))
    wanted_ids, wanted, wanted_entropy = token_statistics_reference(logits, each, ids.shape[1])
    np.testing.assert_allclose(logprobs, wanted, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(entropy, wanted_entropy, rtol=0, atol=TOLERANCE)
    swapped = ids != wanted_ids
    ours, theirs = (np.take_along_axis(logits.astype(np.float64), x, 1)[swapped] for x in (ids, wanted_ids))
    assert (ours != theirs).all()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


@FEW
@given(*CASES)
def test_any_sizes(
    kernels: Kernels, rows: int, top: int, more: int, splits: int, block: int, floats: str, seed: int
) -> None:
    _check(kernels, rows, top, more, splits, block, floats, seed)


@pytest.mark.slow
@MANY
@given(*CASES)
def test_many_sizes(
    kernels: Kernels, rows: int, top: int, more: int, splits: int, block: int, floats: str, seed: int
) -> None:
    _check(kernels, rows, top, more, splits, block, floats, seed)


@pytest.mark.parametrize(
    ("vocabulary", "top", "splits"),
    [
        (8, 8, 1),
        (64, 64, 2),  # each split has fewer columns than candidates
        (9, 8, 32),  # most splits have no columns
        (384, 8, 3),  # wide loads
    ],
)
def test_splits(kernels: Kernels, vocabulary: int, top: int, splits: int) -> None:
    rng = np.random.default_rng(vocabulary)
    logits = -np.abs(normal(rng, (3, vocabulary), "fp32"))
    _assert_statistics(kernels, logits, np.full(1, 0.7, np.float32), top, splits)


def test_equal_logits_by_lower_id(kernels: Kernels) -> None:
    """Use equal columns in one block, in two blocks and in two splits, then all equal, with zeros of both signs."""
    logits = np.random.default_rng(2).standard_normal((2, 300)).clip(-2, 2).astype(np.float32)
    logits[:, [290, 3, 70, 20, 130, 21, 64]] = 2.5  # larger than any other logit
    ids, logprobs, _ = _statistics(kernels, logits, np.ones(2, np.float32))
    assert ids[:, :7].tolist() == [[3, 20, 21, 64, 70, 130, 290]] * 2
    assert (logprobs[:, :7] == logprobs[:, :1]).all()
    logits[:] = np.where(np.arange(300) % 2, -0.0, 0.0)
    ids, logprobs, entropy = _statistics(kernels, logits, np.ones(2, np.float32))
    assert ids.tolist() == [list(range(TOP_K))] * 2
    np.testing.assert_allclose(logprobs, -np.log(300), rtol=1e-6)
    np.testing.assert_allclose(entropy, np.log(300), rtol=1e-6)


def test_extreme_logits(kernels: Kernels) -> None:
    """Put all mass on one token, and logits far below zero: sums neither overflow nor vanish."""
    logits = 3 * normal(np.random.default_rng(3), (4, 200), "fp32")
    logits[0] *= 1e4
    logits[1] = -np.abs(logits[1]) * 1e5
    ids, _, entropy = _statistics(kernels, logits, np.ones(1, np.float32))
    wanted = token_statistics_reference(logits, np.ones(4))
    np.testing.assert_array_equal(ids, wanted[0])
    np.testing.assert_allclose(entropy, wanted[2], rtol=0, atol=1e-4)
    assert entropy[0] < 1e-3


@pytest.mark.parametrize("floats", TYPES)
def test_minus_infinity_has_no_mass(kernels: Kernels, floats: str) -> None:
    """Leave 3 possible tokens in one row, and none in a split of the others."""
    logits = normal(np.random.default_rng(4), (2, 150), floats)
    logits[0, 3:] = -np.inf
    logits[1, 50:100] = -np.inf
    ids, logprobs, entropy = _statistics(kernels, logits, np.ones(2, np.float32))
    wanted_ids, wanted, wanted_entropy = token_statistics_reference(logits, np.ones(2))
    np.testing.assert_array_equal(ids, wanted_ids)  # of equal -inf too, by lower id
    np.testing.assert_allclose(logprobs, wanted, atol=TOLERANCE)
    np.testing.assert_allclose(entropy, wanted_entropy, atol=TOLERANCE)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_nan_and_infinity_come_first_and_spoil_the_row(kernels: Kernels, value: float) -> None:
    """Give a NaN of either sign to the second row, where it must not pass unnoticed."""
    logits = normal(np.random.default_rng(5), (3, 150), "fp32")
    logits[1, 77] = value
    ids, logprobs, entropy = _statistics(kernels, logits, np.ones(3, np.float32))
    assert ids[1, 0] == 77
    assert np.isnan(entropy).tolist() == [False, True, False]
    assert np.isnan(logprobs).all(axis=1).tolist() == [False, True, False]


def test_a_temperature_for_several_rows(kernels: Kernels) -> None:
    logits = normal(np.random.default_rng(6), (6, 90), "bf16")
    _assert_statistics(kernels, logits, np.array([0.5, 1.0, 1.7], np.float32))


def test_the_references_give_the_statistics_of_the_graph() -> None:
    rng = np.random.default_rng(1)
    logits, temperature = rng.standard_normal((9, 50)), rng.uniform(0.3, 2.0, 9)
    found = token_statistics_reference(logits, temperature)
    wanted = statistics_of_logits(torch.from_numpy(logits), torch.from_numpy(temperature)[:, None])
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-12)
    partials = statistics_partials_reference(logits, temperature.astype(np.float32), 13, 4, TOP_K)
    for ours, theirs in zip(statistics_merge_reference(*partials, TOP_K), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6, atol=1e-6)
