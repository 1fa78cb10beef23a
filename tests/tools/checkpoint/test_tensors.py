import numpy as np
import pytest
import torch
from tools.checkpoint.tensors import RandomTensor, pieces_of_tensor


def _values(tensor: RandomTensor, seed: int = 0) -> torch.Tensor:
    words = np.concatenate(list(pieces_of_tensor(tensor, seed)))
    return torch.from_numpy(words.view(np.int16)).view(torch.bfloat16).float()


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.0167), (1.0, 0.1), (0.0, 3.0)])
def test_values_are_normally_distributed(mean: float, deviation: float) -> None:
    values = (_values(RandomTensor("a", (1000, 1000), deviation, mean)) - mean) / deviation
    assert values.mean().item() == pytest.approx(0, abs=0.005)
    assert values.std().item() == pytest.approx(1, abs=0.005)
    assert (values.abs() < 1).float().mean().item() == pytest.approx(0.6827, abs=0.01)
    assert (values.abs() > 3).float().mean().item() == pytest.approx(0.0027, abs=0.0008)
    assert 4 < values.abs().max().item() < 4.6


def test_pieces_are_contiguous_and_differ() -> None:
    tensor = RandomTensor("a", ((1 << 22) + 5,), 1.0)
    sizes = [len(piece) for piece in pieces_of_tensor(tensor, 0)]
    assert sizes == [1 << 22, 5]
    values = _values(tensor)
    longer = _values(RandomTensor("a", ((1 << 23) + 1,), 1.0))
    torch.testing.assert_close(longer[: len(values)], values, rtol=0, atol=0)
    first, second = longer[: 1 << 22], longer[1 << 22 : 1 << 23]
    assert abs((first * second).mean().item()) < 0.005
    assert abs((first[:-1] * first[1:]).mean().item()) < 0.005
