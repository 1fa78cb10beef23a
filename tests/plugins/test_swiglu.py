"""SwiGLU: the kernel against float64, and the reference against torch."""

import numpy as np
import pytest
import torch
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import TYPES, assert_rounded, normal, poison
from tests.plugins.rounding_reference import E4M3, GREATEST, rounded_rows, scaled_product
from tests.plugins.swiglu_reference import swiglu_reference


@pytest.mark.parametrize("floats", TYPES)
@pytest.mark.parametrize(
    ("rows", "size", "block", "fused"), [(3, 48, 32, True), (1, 16, 64, False), (2, 336, 64, True)]
)
def test_fused_and_separate_products(
    kernels: Kernels, floats: str, rows: int, size: int, block: int, fused: bool
) -> None:
    """Fused products have gelu."""
    rng = np.random.default_rng(size)
    gate, up = 3 * normal(rng, (rows, size), floats), normal(rng, (rows, size), floats)
    gate[0, :4] = -30, 30, 0, -100  # saturated
    output, unscaled = np.full_like(gate, np.nan), [poison("fp32"), poison("fp32"), 0]
    if fused:
        given = [np.concatenate([gate, up], 1), kernel_calls.View(0, size), *unscaled, output, 2 * size, size, 1]
    else:
        given = [gate, up, *unscaled, output, size, size, 0]
    found = kernels(kernel_calls.run, "swiglu", (rows, -(-size // block)), given, {"BLOCK": block})
    assert_rounded(found[-1], swiglu_reference(gate, up, gelu=fused), floats, units=2)


def test_other_channels_are_untouched(kernels: Kernels) -> None:
    """Use a row that ends within a block, and an output with one more row."""
    gate, output = np.ones((2, 16), np.float32), np.full((3, 16), 7, np.float32)
    given = [gate, gate, poison("fp32"), poison("fp32"), 0, output, 16, 16, 0]
    found = kernels(kernel_calls.run, "swiglu", (2, 1), given, {"BLOCK": 64})[-1]
    assert (found[2] == 7).all()
    assert (found[:2] < 1).all()


@pytest.mark.parametrize("floats", TYPES)
@pytest.mark.parametrize("kind", GREATEST)
def test_scaled_products_and_rounded_rows(kernels: Kernels, floats: str, kind: str) -> None:
    """The numbers that are rounded are those of the other kernel, which has the scales too."""
    rng, is_gelu = np.random.default_rng(7), kind == "e4m3"
    product, scales = 3 * normal(rng, (3, 160), floats), [np.exp(rng.standard_normal(n)) for n in (3, 160)]
    scales = [each.astype(np.float32) for each in scales]
    given = [product, kernel_calls.View(0, 80), *scales, 1]
    output, codes = np.full((3, 80), np.nan, TYPES[floats]), np.full((3, 80), 99, np.int8)
    found = kernels(kernel_calls.run, "swiglu", (3, 2), [*given, output, 160, 80, int(is_gelu)], {"BLOCK": 64})[-1]
    gate, up = np.split(scaled_product(product, *scales), 2, 1)
    assert_rounded(found, swiglu_reference(gate, up, gelu=is_gelu), floats, units=2)
    numbers = [160, 80, 1 / GREATEST[kind], 0.5, int(kind == "e4m3"), int(is_gelu)]
    given += [codes, np.full(3, np.nan, np.float32), *numbers]
    codes, of_rows = kernels(kernel_calls.run, "rounded_swiglu", (3,), given, {"BLOCK": 64})[-2:]
    wanted, wanted_scales = rounded_rows(found, kind)
    np.testing.assert_array_equal(codes.view(E4M3 if kind == "e4m3" else np.int8).astype(float), wanted.astype(float))
    np.testing.assert_array_equal(of_rows * 2, wanted_scales)


def test_the_reference_is_torchs() -> None:
    gate, up = np.random.default_rng(2).standard_normal((2, 5, 16)) * 4
    wanted = torch.nn.functional.silu(torch.from_numpy(gate)) * torch.from_numpy(up)
    np.testing.assert_allclose(swiglu_reference(gate, up), wanted.numpy(), rtol=1e-12)
    wanted = torch.nn.functional.gelu(torch.from_numpy(gate), approximate="tanh") * torch.from_numpy(up)
    np.testing.assert_allclose(swiglu_reference(gate, up, gelu=True), wanted.numpy(), rtol=1e-12, atol=1e-12)
