"""Draws of a graph with canvases equal numpy's float64 sums."""

import numpy as np
import pytest
import torch

from lopa.export.graph.canvas_draw import drawn_tokens
from lopa.runtime.sessions import numpy_canvas


def draws(probabilities: torch.Tensor, uniform: torch.Tensor) -> tuple[list[int], list[int]]:
    arrays = probabilities.numpy(), uniform.numpy()
    return drawn_tokens(probabilities, uniform).tolist(), numpy_canvas.drawn_tokens(*arrays).tolist()


@pytest.mark.parametrize(("vocabulary", "spread"), [(8, 1), (97, 2), (1000, 3), (5000, 0.1), (5000, 5)])
def test_draws_of_10000_rows_equal_numpy(vocabulary: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    probabilities = (spread * torch.randn(10_000, vocabulary, generator=generator)).softmax(-1)
    ours, theirs = draws(probabilities, torch.rand(10_000, generator=generator))
    assert ours == theirs


def test_float32_sums_would_draw_other_tokens() -> None:
    """The published vocabulary has steps of 4e-6, near the errors of float32."""
    generator = torch.Generator().manual_seed(0)
    probabilities = (0.3 * torch.randn(100, 262_144, generator=generator)).softmax(-1)
    uniform = torch.rand(100, generator=generator)
    ours, theirs = draws(probabilities, uniform)
    assert ours == theirs
    sums = np.cumsum(probabilities.numpy(), axis=-1)  # float32
    assert (sums <= uniform.numpy()[:, None] * sums[:, -1:]).sum(-1).tolist() != theirs


def test_ends_of_the_range() -> None:
    probabilities = torch.tensor([[0, 0, 0.5, 0, 0.5, 0, 0, 0, 0, 0]]).repeat(5, 1)
    ours, theirs = draws(probabilities, torch.tensor([0, 0.5 - 2**-24, 0.5, 0.75, 1 - 2**-24]))
    assert ours == theirs == [2, 2, 4, 4, 4]
