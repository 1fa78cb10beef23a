"""Split of the projections: the kernel against float64, and the reference against the standard's rotary embedding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference.ops.op_rotary_embedding import RotaryEmbedding
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, MANY, TYPES, Array, normal, poison
from tests.plugins.rounding_reference import scaled_product
from tests.plugins.split_rotary_reference import split_rotary_reference

CASES = (
    st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 4, 7, 8]), st.integers(1, 3)),
    st.sampled_from(
        [(16, 16), (32, 32), (48, 48), (64, 64), (64, 16), (96, 96), (96, 48), (128, 128), (256, 64), (512, 512)]
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(list(TYPES)),
    st.integers(0, 1 << 30),
)


def _check(
    kernels: Kernels,
    sizes: tuple[int, int, int],
    head: tuple[int, int],
    fused: bool,
    biased: bool,
    normed: bool,
    floats: str,
    seed: int,
) -> None:
    """Split. Fused products with a bias have scales too. The seed says whether keys are values, whether values have a
    norm, and how many numbers their rows have."""
    rows, group, kv_heads = sizes
    size, rotated = head
    shared, value_norm, width = seed % 2, seed // 2 % 2, kv_heads * size + 80 * (seed // 4 % 3)
    heads, every = group * kv_heads, (group + 2 - shared) * kv_heads
    rng = np.random.default_rng(seed)
    joined = product = normal(rng, (rows, every, size), floats)
    scales, has_scales = [poison("fp32"), poison("fp32")], fused and biased
    if has_scales:
        scales = [np.exp(rng.standard_normal(count)).astype(np.float32) for count in (rows, every * size)]
        joined = scaled_product(product.reshape(rows, -1), *scales).reshape(product.shape)
    value_head = heads + kv_heads * (1 - shared)
    query, key, value = joined[:, :heads], joined[:, heads:][:, :kv_heads], joined[:, value_head:]
    bias = normal(rng, (every, size), floats) if biased else None
    norms = (normal(rng, (size,), floats), normal(rng, (size,), floats)) if normed else None
    angles = rng.uniform(0, 6, (rows, rotated // 2))
    cos, sin = np.cos(angles).astype(TYPES[floats]), np.sin(angles).astype(TYPES[floats])
    absent = poison(floats)
    if fused:
        views = [kernel_calls.View(0, heads * size), kernel_calls.View(0, value_head * size)]
        products = [product, *views, every * size, every * size]
    else:
        products = [*(np.ascontiguousarray(x) for x in (query, key, value)), heads * size, kv_heads * size]
    outputs = [np.full(shape, np.nan, TYPES[floats]) for shape in ((rows, heads, size), *[(rows, width)] * 2)]
    arguments = [
        *products,
        *scales,
        int(has_scales),
        absent if bias is None else bias,
        int(biased),
        *(norms or (absent, absent)),
        cos,
        sin,
    ]
    numbers = [heads, kv_heads, value_head, size, width, rotated, value_norm, 1e-5]
    constants = {"CHANNELS": next(each for each in (64, 128, 256, 512) if each >= size), "NORM": normed}
    grid = (rows, heads + 2 * kv_heads)
    found = kernels(kernel_calls.run, "split_rotary", grid, [*arguments, *outputs, *numbers], constants)
    if norms is not None and value_norm:
        norms = (*norms, np.ones(size))
    if bias is not None:
        bias = np.concatenate([bias[: heads + kv_heads], bias[value_head:]])
    wanted = split_rotary_reference(query, key, value, bias, norms, cos, sin, epsilon=1e-5)
    _assert_close(found[-3], wanted[0], floats)
    for ours, theirs in zip(found[-2:], wanted[1:], strict=True):
        _assert_close(ours[:, : kv_heads * size].reshape(theirs.shape), theirs, floats)
        assert not ours[:, kv_heads * size :].any()


def _assert_close(found: Array, wanted: Array, floats: str) -> None:
    """Compare the results of three roundings. Differences may cancel, so they are relative to about 1."""
    unit = {"fp32": 4e-6, "fp16": 2.0**-9, "bf16": 2.0**-6}[floats]
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=unit, atol=unit)
    if floats != "fp32":
        assert (found == wanted).mean() > 0.95 or found.size < 200


@FEW
@given(*CASES)
def test_any_sizes(
    kernels: Kernels,
    sizes: tuple[int, int, int],
    head: tuple[int, int],
    fused: bool,
    biased: bool,
    normed: bool,
    floats: str,
    seed: int,
) -> None:
    _check(kernels, sizes, head, fused, biased, normed, floats, seed)


@pytest.mark.slow
@MANY
@given(*CASES)
def test_many_sizes(
    kernels: Kernels,
    sizes: tuple[int, int, int],
    head: tuple[int, int],
    fused: bool,
    biased: bool,
    normed: bool,
    floats: str,
    seed: int,
) -> None:
    _check(kernels, sizes, head, fused, biased, normed, floats, seed)


@pytest.mark.parametrize(
    ("fused", "biased", "normed", "floats", "seed"),
    [
        (True, True, False, "bf16", 3),
        (False, False, True, "fp16", 6),
        (True, True, True, "fp32", 7),
        (False, True, True, "bf16", 0),
    ],
)
def test_rows_of_a_model(kernels: Kernels, fused: bool, biased: bool, normed: bool, floats: str, seed: int) -> None:
    _check(kernels, (6, 4, 2), (96, 48), fused, biased, normed, floats, seed)


def test_the_reference_is_the_standards() -> None:
    """Compare with the onnx package's operator, without and with channels that do not rotate."""
    rng = np.random.default_rng(4)
    query, key = rng.standard_normal((6, 4, 16)), rng.standard_normal((6, 2, 16))
    for rotated in (16, 8):
        cos, sin = rng.standard_normal((2, 6, rotated // 2))
        found = split_rotary_reference(query, key, key, None, None, cos, sin, epsilon=0.0)
        wanted = [_rotated_by_onnx(x, cos, sin, rotated) for x in (query, key)]
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-12)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-12)
        np.testing.assert_array_equal(found[2], key)


def _rotated_by_onnx(x: Array, cos: Array, sin: Array, rotated: int) -> Array:
    run = RotaryEmbedding._run.__get__(object.__new__(RotaryEmbedding))
    (found,) = run(
        x.transpose(1, 0, 2)[None], cos[None], sin[None], interleaved=0, num_heads=0, rotary_embedding_dim=rotated
    )
    return np.asarray(found[0].transpose(1, 0, 2))
