"""How fast a device multiplies matrices and moves memory through torch: the two limits of a forward's time there.

As lopa.bench.forward.machine_rates says them for the CPU through ONNX Runtime. Knows no model.
"""

from collections.abc import Callable

import torch

from lopa.bench.forward.machine_rates import MachineRates, least_seconds

_FIRST_SIZE, _LARGEST_SIZE = 512, 16384
"""Rows and columns of the square matrices that are tried: doubled until a product takes _LONG_ENOUGH."""
_LONG_ENOUGH = 0.005
"""Seconds, beside which starting a kernel and waiting for it are small."""
_COPIED_BYTES = {"cuda": 1 << 31, "cpu": 1 << 28}
"""Many times what caches hold."""
_SECONDS = 1.0
"""How long each limit is tried."""


def measured_torch_rates(device: str, dtype: torch.dtype) -> MachineRates:
    """Measure `device` ("cpu", "cuda:0") for some seconds; integers count as fast as products in `dtype`.

    The bandwidth is the better one of a copy's, bytes read and written together, and of a sum's, bytes read.
    """
    product = _product_rate(device, dtype)
    return MachineRates(float32=product, int8=product, bandwidth=_memory_rate(device))


def _product_rate(device: str, dtype: torch.dtype) -> float:
    """Operations per second, a multiplication and an addition counted as two."""
    size = _FIRST_SIZE
    while True:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)

        def multiply(left: torch.Tensor = left, right: torch.Tensor = right, out: torch.Tensor = product) -> None:
            torch.mm(left, right, out=out)

        if size == _LARGEST_SIZE or _least_seconds(multiply, device, 0) >= _LONG_ENOUGH:
            return 2 * size**3 / _least_seconds(multiply, device, _SECONDS)
        size *= 2


def _memory_rate(device: str) -> float:
    """Bytes per second."""
    count = _COPIED_BYTES[torch.device(device).type] // 4
    source, target = torch.ones(count, device=device), torch.empty(count, device=device)
    copied = 2 * 4 * count / _least_seconds(lambda: target.copy_(source), device, _SECONDS)
    read = 4 * count / _least_seconds(source.sum, device, _SECONDS)
    return max(copied, read)


def _least_seconds(work: Callable[[], object], device: str, seconds: float) -> float:
    """As least_seconds, of a call of `work` until `device` is done with it."""

    def waited() -> None:
        work()
        _wait(device)

    return least_seconds(waited, seconds)


def _wait(device: str) -> None:
    """Until everything that was started on `device` is done."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
