"""Rates of the CPU in torch are plausible and follow from the stated work."""

from collections.abc import Callable

import pytest
import torch

from lopa.bench.forward import torch_rates
from lopa.bench.forward.torch_rates import measure_torch_rates


def test_rates_are_operations_and_bytes_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the times: the first product is too short, so the next has twice the size."""
    tried: list[float] = []
    times = iter([0.001, 0.01, 0.008, 0.5, 0.125])

    def best(work: Callable[[], object], device: str, seconds: float) -> float:
        work()
        tried.append(seconds)
        return next(times)

    monkeypatch.setattr(torch_rates, "_min_seconds", best)
    rates = measure_torch_rates("cpu", torch.float32)
    assert tried == [0, 0, 1, 1, 1]
    assert rates.float32 == rates.int8 == 2 * 1024**3 / 0.008
    assert rates.bandwidth == max(2 * (1 << 28) / 0.5, (1 << 28) / 0.125)
