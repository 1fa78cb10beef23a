"""How fast this machine multiplies matrices and moves memory: the two limits of a forward's time on the CPU.

The rates are those that the engine itself reaches on one large product, the best of some tries, so that a forward can
come near them and a busy machine does not lower them. Knows no model.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from lopa.bench.forward.product_graph import Array, graph_of_product

_ROWS, _INPUTS, _OUTPUTS = 512, 1024, 4096
"""Sizes of the product: as many rows as 8 branches of 64, a matrix of a small layer."""
_COPIED_BYTES = 256 << 20
"""Many times what caches hold."""
_SECONDS = 1.0
"""How long each limit is tried."""


@dataclass(frozen=True)
class MachineRates:
    """The limits, at one number of threads."""

    float32: float
    """Operations per second of a float32 product, a multiplication and an addition counted as two."""
    int8: float
    """The same for 8-bit integers."""
    bandwidth: float
    """Bytes per second of a large copy, read and written ones together."""


def measured_rates(threads: int) -> MachineRates:
    """Measure this machine for some seconds with `threads` threads."""
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((_ROWS, _INPUTS), np.float32), rng.standard_normal((_INPUTS, _OUTPUTS), np.float32)
    integers = (
        rng.integers(256, size=(_ROWS, _INPUTS), dtype=np.uint8),
        rng.integers(-128, 128, size=(_INPUTS, _OUTPUTS), dtype=np.int8),
    )
    operations = 2 * _ROWS * _INPUTS * _OUTPUTS
    return MachineRates(
        float32=operations / least_seconds(_product("MatMul", *floats, threads)),
        int8=operations / least_seconds(_product("MatMulInteger", *integers, threads)),
        bandwidth=_copy_rate(threads),
    )


def _product(operator: str, left: Array, right: Array, threads: int) -> Callable[[], object]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    graph = graph_of_product(operator, (left.shape[0], left.shape[1]), left.dtype, right)
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": left})


def _copy_rate(threads: int) -> float:
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return 2 * _COPIED_BYTES / least_seconds(lambda: list(pool.map(_copied, parts)))


def _copied(part: tuple[Array, Array]) -> None:
    """Numpy copies without holding Python's lock, so that threads copy at once."""
    np.copyto(part[1], part[0])


def least_seconds(work: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Of one call of `work`, tried for about `seconds`, and at least once, after a first one that is not counted."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        work()
        ended = time.perf_counter()
        best = min(best, ended - began)
        if ended >= end:
            return best
