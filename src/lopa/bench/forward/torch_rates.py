"""Rates of matrix products and memory of a device in torch, which limit the time of a forward."""

from collections.abc import Callable

import torch

from lopa.bench.forward.work import MachineRates, min_seconds

_FIRST_SIZE, _LARGEST_SIZE = 512, 16384
"""Smallest and largest side of the square matrices. The side doubles until a product takes _LONG_ENOUGH seconds."""
_LONG_ENOUGH = 0.005
"""Seconds of a product beyond which kernel launch and synchronization are negligible."""
_COPIED_BYTES = {"cuda": 1 << 31, "cpu": 1 << 28}
"""Bytes of the copy, many times the size of the caches."""
_SECONDS = 1.0
"""Seconds per measured rate."""


def measure_torch_rates(device: str, dtype: torch.dtype) -> MachineRates:
    """Measure `device` ("cpu", "cuda:0") for a few seconds. int8 products are assumed as fast as products in `dtype`.

    The bandwidth is the better of a copy, reads plus writes, and of a sum, reads only.
    """
    product = _product_rate(device, dtype)
    return MachineRates(float32=product, int8=product, bandwidth=_memory_rate(device))


def _product_rate(device: str, dtype: torch.dtype) -> float:
    """Return operations per second. A multiply-add counts as two."""
    size = _FIRST_SIZE
    while True:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)

        def multiply(left: torch.Tensor = left, right: torch.Tensor = right, out: torch.Tensor = product) -> None:
            torch.mm(left, right, out=out)

        if size == _LARGEST_SIZE or _min_seconds(multiply, device, 0) >= _LONG_ENOUGH:
            return 2 * size**3 / _min_seconds(multiply, device, _SECONDS)
        size *= 2


def _memory_rate(device: str) -> float:
    """Return bytes per second."""
    count = _COPIED_BYTES[torch.device(device).type] // 4
    source, target = torch.ones(count, device=device), torch.empty(count, device=device)
    copied = 2 * 4 * count / _min_seconds(lambda: target.copy_(source), device, _SECONDS)
    read = 4 * count / _min_seconds(source.sum, device, _SECONDS)
    return max(copied, read)


def _min_seconds(work: Callable[[], object], device: str, seconds: float) -> float:
    """Return the minimum seconds of `work` including synchronization with `device`."""

    def run_and_wait() -> None:
        work()
        _wait(device)

    return min_seconds(run_and_wait, seconds)


def _wait(device: str) -> None:
    """Synchronize with `device`."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
