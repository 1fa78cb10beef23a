"""SwiGLU: the kernel against float64, and the reference against torch."""

import numpy as np
import pytest
import torch
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import TYPES, assert_rounded, normal
from tests.plugins.swiglu_reference import swiglu_reference


@pytest.mark.parametrize("floats", TYPES)
@pytest.mark.parametrize(
    ("rows", "size", "block", "fused"), [(3, 48, 32, True), (1, 16, 64, False), (2, 336, 64, True)]
)
def test_fused_and_separate_products(
    kernels: Kernels, floats: str, rows: int, size: int, block: int, fused: bool
) -> None:
    rng = np.random.default_rng(size)
    gate, up = 3 * normal(rng, (rows, size), floats), normal(rng, (rows, size), floats)
    gate[0, :4] = -30, 30, 0, -100  # saturated
    output = np.full_like(gate, np.nan)
    if fused:
        given = [np.concatenate([gate, up], 1), kernel_calls.View(0, size), output, 2 * size, size]
    else:
        given = [gate, up, output, size, size]
    found = kernels(kernel_calls.run, "swiglu", (rows, -(-size // block)), given, {"BLOCK": block})
    assert_rounded(found[-1], swiglu_reference(gate, up), floats, units=2)


def test_other_channels_are_untouched(kernels: Kernels) -> None:
    """Use a row that ends within a block, and an output with one more row."""
    gate, output = np.ones((2, 16), np.float32), np.full((3, 16), 7, np.float32)
    found = kernels(kernel_calls.run, "swiglu", (2, 1), [gate, gate, output, 16, 16], {"BLOCK": 64})[-1]
    assert (found[2] == 7).all()
    assert (found[:2] < 1).all()


def test_the_reference_is_torchs() -> None:
    gate, up = np.random.default_rng(2).standard_normal((2, 5, 16)) * 4
    wanted = torch.nn.functional.silu(torch.from_numpy(gate)) * torch.from_numpy(up)
    np.testing.assert_allclose(swiglu_reference(gate, up), wanted.numpy(), rtol=1e-12)
