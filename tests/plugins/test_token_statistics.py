"""The token statistics: the kernels against float64, and the reference against the graph's own statistics."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.token_statistics_reference import token_statistics_reference

from lopa.export.graph.module import statistics_of_logits
from lopa.runtime.contract import TOP_K

Array = np.ndarray
TILES = (32, 64, 32)
TOLERANCE = 2e-5
"""Tolerance of log-probability and entropy for every type: products are exact in float32, sums nearly so."""
FEW = settings(
    max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def head_inputs(rows: int, size: int, vocabulary: int, *, seed: int, dtype: str = "float32") -> list[Array]:
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    hidden = rng.standard_normal((rows, size)).astype(kind)
    weight = (rng.standard_normal((size, vocabulary)) * 3 / np.sqrt(size)).astype(kind)
    return [hidden, weight, rng.uniform(0.3, 2.0, rows).astype(np.float32)]


def _check(kernels: Kernels, inputs: list[Array], tiles: tuple[int, int, int] = TILES) -> None:
    ids, logprobs, entropy = kernels(kernel_calls.run_token_statistics, inputs, tiles)
    hidden, weight, temperature = (x.astype(np.float64) for x in inputs)
    every = np.repeat(temperature, hidden.shape[0] // temperature.size)
    wanted_ids, wanted, wanted_entropy = token_statistics_reference(hidden, weight, every)
    np.testing.assert_allclose(logprobs, wanted, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(entropy, wanted_entropy, rtol=0, atol=TOLERANCE)
    clear = np.abs(np.diff(wanted, axis=-1)) > 2 * TOLERANCE  # between neighbours
    sure = np.pad(clear, [(0, 0), (1, 0)], constant_values=True) & np.pad(clear, [(0, 0), (0, 1)])
    assert sure.any()
    np.testing.assert_array_equal(ids[sure], wanted_ids[sure])


def test_the_reference_gives_the_statistics_of_the_graph() -> None:
    hidden, weight, temperature = head_inputs(9, 12, 50, seed=1)
    ids, logprobs, entropy = token_statistics_reference(hidden, weight, temperature)
    logits = torch.from_numpy(hidden).double() @ torch.from_numpy(weight).double()
    wanted = statistics_of_logits(logits, torch.from_numpy(temperature).double()[:, None])
    for ours, theirs in zip((ids, logprobs, entropy), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "sizes"), [("float16", (1, 16, 8)), ("bfloat16", (33, 40, 200)), ("float32", (3, 70, 1031))]
)
def test_sizes_and_types(kernels: Kernels, sizes: tuple[int, int, int], dtype: str) -> None:
    _check(kernels, head_inputs(*sizes, seed=sum(sizes), dtype=dtype))


@FEW
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(TOP_K, 300)),
    st.tuples(*(st.sampled_from(sizes) for sizes in ((16, 32), (32, 64, 128), (16, 64)))),
    st.integers(0, 1 << 30),
)
def test_any_sizes_and_tiles(
    kernels: Kernels, sizes: tuple[int, int, int], tiles: tuple[int, int, int], seed: int
) -> None:
    _check(kernels, head_inputs(*sizes, seed=seed), tiles)


def test_splits_of_several_tiles(kernels: Kernels) -> None:
    """Use 17 tiles for 3 splits."""
    _check(kernels, head_inputs(3, 16, 270, seed=9), (16, 16, 16))


def test_a_split_of_fewer_tokens_than_candidates(kernels: Kernels) -> None:
    """Use 130 tokens, 2 of them in the second split; all logits are negative."""
    inputs = head_inputs(3, 16, 130, seed=10)
    inputs[0], inputs[1] = np.abs(inputs[0]), -np.abs(inputs[1])
    _check(kernels, inputs, (16, 128, 16))


def test_equal_logits_by_lower_id(kernels: Kernels) -> None:
    """Use equal columns in one tile, in two tiles and in two splits, then all equal, with zeros of both signs."""
    inputs = head_inputs(5, 20, 300, seed=2)
    inputs[0], inputs[1] = np.ceil(np.abs(inputs[0])), np.round(inputs[1] * 4) / 4  # makes sums exact
    inputs[1][:, [290, 3, 70, 20, 130, 21, 64]] = 2.5  # larger than any other logit
    ids, logprobs, _ = kernels(kernel_calls.run_token_statistics, inputs, TILES)
    assert ids[:, :7].tolist() == [[3, 20, 21, 64, 70, 130, 290]] * 5
    assert (logprobs[:, :7] == logprobs[:, :1]).all()
    # The smallest negative number, which a temperature of 4 turns into -0.
    inputs[1] = np.where((np.arange(300) % 2 == 1) & (np.arange(20)[:, None] == 0), np.float32(-1e-45), np.float32(0))
    ones, fours = np.ones_like(inputs[0]), np.full(5, 4, np.float32)
    ids, logprobs, entropy = kernels(kernel_calls.run_token_statistics, [ones, inputs[1], fours], TILES)
    assert ids.tolist() == [list(range(TOP_K))] * 5
    np.testing.assert_allclose(logprobs, -np.log(300), rtol=1e-6)
    np.testing.assert_allclose(entropy, np.log(300), rtol=1e-6)


def test_extreme_logits(kernels: Kernels) -> None:
    """Put all mass on one token, and logits far below zero: sums neither overflow nor vanish."""
    inputs = head_inputs(4, 16, 200, seed=3)
    inputs[0][0] *= 1e3
    inputs[0][1] = -np.abs(inputs[0][1])
    inputs[1][:] = np.abs(inputs[1])
    inputs[0][1] *= 1e2
    _, _, entropy = kernels(kernel_calls.run_token_statistics, inputs, TILES)
    wanted = token_statistics_reference(*(x.astype(np.float64) for x in inputs))[2]
    np.testing.assert_allclose(entropy, wanted, rtol=0, atol=1e-3)
    assert entropy[0] < 1e-3


def test_a_temperature_for_several_rows(kernels: Kernels) -> None:
    inputs = head_inputs(12, 20, 90, seed=4)
    inputs[2] = inputs[2][:3].copy()
    _check(kernels, inputs)
