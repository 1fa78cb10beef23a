"""The choice among equal values matches torch.topk on a CPU."""

import numpy as np
import pytest

from lopa.runtime.strategy.topk_ties import indices_of_topk


@pytest.mark.parametrize("seed", range(2))
def test_ties_match_torch_topk(seed: int) -> None:
    """Values repeat and include minus infinity, as in blocks with some unmasked positions."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    tied = 0
    for _ in range(100):
        size = int(rng.integers(1, 65))
        count = int(rng.integers(1 + size // 64, size + 1))
        levels = rng.random(int(rng.integers(1, 6))).astype(np.float32)
        values = np.where(rng.random(size) < 0.4, -np.inf, rng.choice(levels, size)).astype(np.float32)
        found = set(indices_of_topk(values, count).tolist())
        assert found == set(torch.topk(torch.from_numpy(values), count).indices.tolist())
        first = np.argsort(-values, kind="stable")[:count]
        tied += found != set(first.tolist())
    assert tied > 10, "no case depends on the choice among ties"
