"""Branch attention: the kernel against float64, and the reference against a softmax written row by row."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.branch_attention_reference import branch_attention_reference
from tests.plugins.conftest import Kernels

Array = np.ndarray
TOLERANCES = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
"""Largest differences from float64 for normally distributed values: a few roundings of the type."""
FEW = settings(
    max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def attention_inputs(
    r: int, b: int, heads: int, kv_heads: int, w: int, p: int, d: int, *, seed: int, dtype: str = "float32"
) -> list[Array]:
    """Return inputs in the order of branch_attention; every row sees itself."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    window, past = (r, b, kv_heads, w, d), (r, kv_heads, p, d)
    arrays = [rng.standard_normal(shape).astype(kind) for shape in ((r, b, heads, w, d), window, window, past, past)]
    return [*arrays, (rng.random((r, b, w, w)) < 0.4) | np.eye(w, dtype=np.bool_), rng.random((r, p)) < 0.5]


def _check(
    kernels: Kernels, inputs: list[Array], rows: int = 32, columns: int = 32, tolerance: float | None = None
) -> None:
    found = kernels(kernel_calls.run_branch_attention, inputs, rows, columns)
    wide = [x.astype(np.float64) if x.dtype != np.bool_ else x for x in inputs]
    allowed = TOLERANCES[inputs[0].dtype.name] if tolerance is None else tolerance
    np.testing.assert_allclose(found, branch_attention_reference(*wide), rtol=0, atol=allowed)


def test_the_reference_is_attention_row_by_row() -> None:
    q, k, v, past_k, past_v, window_mask, prefix_mask = inputs = attention_inputs(2, 3, 6, 2, 5, 7, 4, seed=1)
    found = branch_attention_reference(*inputs)
    for r, b, h, w in np.ndindex(*q.shape[:4]):
        keys = np.concatenate([past_k[r, h // 3][prefix_mask[r]], k[r, b, h // 3][window_mask[r, b, w]]])
        values = np.concatenate([past_v[r, h // 3][prefix_mask[r]], v[r, b, h // 3][window_mask[r, b, w]]])
        weights = np.exp(keys.astype(np.float64) @ q[r, b, h, w] / 2)
        np.testing.assert_allclose(found[r, b, h, w], weights @ values / weights.sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        ("float32", (1, 1, 1, 1, 1, 1, 16)),
        ("float16", (2, 5, 6, 2, 7, 64, 16)),  # tiles across branches and heads, W not a multiple of anything
        ("bfloat16", (1, 2, 4, 4, 33, 65, 24)),  # no shared heads; one row more than a tile; D not a power of two
        ("float32", (3, 1, 14, 2, 32, 31, 64)),
    ],
)
def test_sizes_and_types(kernels: Kernels, sizes: tuple[int, ...], dtype: str) -> None:
    _check(kernels, attention_inputs(*sizes, seed=sum(sizes), dtype=dtype))


@FEW
@given(
    st.tuples(*(st.integers(1, upper) for upper in (3, 4, 3, 3, 20, 70, 40))),
    st.sampled_from([16, 32, 64]),
    st.sampled_from([16, 32, 64]),
    st.integers(0, 1 << 30),
)
def test_any_sizes_and_tiles(kernels: Kernels, sizes: tuple[int, ...], rows: int, columns: int, seed: int) -> None:
    r, b, group, kv_heads, w, p, d = sizes
    _check(kernels, attention_inputs(r, b, group * kv_heads, kv_heads, w, p, d, seed=seed), rows, columns)


def test_a_request_without_committed_rows(kernels: Kernels) -> None:
    inputs = attention_inputs(3, 2, 4, 2, 9, 64, 16, seed=3)
    inputs[6][1] = False
    _check(kernels, inputs)


def test_completely_masked_tiles_of_the_prefix(kernels: Kernels) -> None:
    """Mask the first, a middle and the last tile, which contain large values."""
    inputs = attention_inputs(1, 2, 4, 2, 9, 160, 16, seed=4)
    inputs[6][:] = True
    for tile in (0, 2, 4):
        inputs[6][0, 32 * tile : 32 * (tile + 1)] = False
        inputs[3][:, :, 32 * tile : 32 * (tile + 1)] *= 1e4
        inputs[4][:, :, 32 * tile : 32 * (tile + 1)] *= 1e4
    _check(kernels, inputs)


def test_padding_rows_see_themselves_alone(kernels: Kernels) -> None:
    """Use 4 real rows of 9 in branch 1. Without a prefix the output of a padding row is its own value."""
    inputs = attention_inputs(1, 2, 4, 2, 9, 64, 16, seed=5)
    inputs[5][0, 1, 4:] = np.eye(9, dtype=np.bool_)[4:]
    inputs[5][0, 1, :4, 4:] = False
    inputs[6][:] = False
    _check(kernels, inputs)
    found = kernels(kernel_calls.run_branch_attention, inputs, 16, 16)
    np.testing.assert_allclose(found[0, 1, :, 4:], np.repeat(inputs[2][0, 1, :, 4:], 2, axis=0), rtol=1e-6)


def test_a_row_that_sees_nothing_is_zero(kernels: Kernels) -> None:
    inputs = attention_inputs(1, 2, 4, 2, 9, 40, 16, seed=6)
    inputs[5][0, 0, 3] = False
    inputs[6][:] = False
    _check(kernels, inputs)
    assert not kernels(kernel_calls.run_branch_attention, inputs, 32, 32)[0, 0, :, 3].any()


def test_large_scores(kernels: Kernels) -> None:
    """Use scores in the thousands, with the maximum in the prefix for some rows and in the window for others.

    Such scores have errors of about 1e-4 in float32, and so do the weights.
    """
    inputs = attention_inputs(2, 3, 4, 2, 9, 70, 16, seed=7)
    inputs[0] *= 1e3
    _check(kernels, inputs, tolerance=1e-3)
