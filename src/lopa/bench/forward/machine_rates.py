"""Rates of matrix products and memory on the CPU, which limit the time of a forward.

The rates are the best of several tries of one large product in the engine itself. A forward can come close to them, and
they hardly depend on other load on the machine.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from lopa.bench.forward.product_graph import Array, graph_of_product
from lopa.runtime.sessions.exact_int8 import multiply_exactly

_ROWS, _INPUTS, _OUTPUTS = 512, 1024, 4096
"""Sizes of the product: rows of 8 branches with 64 tokens each, and a matrix of a small layer."""
_COPIED_BYTES = 256 << 20
"""Bytes of the copy, many times the size of the caches."""
_SECONDS = 1.0
"""Seconds per measured rate."""


@dataclass(frozen=True)
class MachineRates:
    """Maximum rates with a number of threads."""

    float32: float
    """Operations per second of a float32 product. A multiply-add counts as two."""
    int8: float
    """Operations per second of an int8 product."""
    bandwidth: float
    """Bytes per second of a large copy, reads plus writes."""


def measure_rates(threads: int) -> MachineRates:
    """Measure this machine for a few seconds with `threads` threads."""
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((_ROWS, _INPUTS), np.float32), rng.standard_normal((_INPUTS, _OUTPUTS), np.float32)
    integers = (
        rng.integers(256, size=(_ROWS, _INPUTS), dtype=np.uint8),
        rng.integers(-128, 128, size=(_INPUTS, _OUTPUTS), dtype=np.int8),
    )
    operations = 2 * _ROWS * _INPUTS * _OUTPUTS
    return MachineRates(
        float32=operations / min_seconds(_product("MatMul", *floats, threads)),
        int8=operations / min_seconds(_product("MatMulInteger", *integers, threads)),
        bandwidth=_copy_rate(threads),
    )


def _product(operator: str, left: Array, right: Array, threads: int) -> Callable[[], object]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    multiply_exactly(options)
    graph = graph_of_product(operator, (left.shape[0], left.shape[1]), left.dtype, right)
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": left})


def _copy_rate(threads: int) -> float:
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return 2 * _COPIED_BYTES / min_seconds(lambda: list(pool.map(_copy, parts)))


def _copy(part: tuple[Array, Array]) -> None:
    """Copy an array. numpy releases the GIL, so threads copy in parallel."""
    np.copyto(part[1], part[0])


def min_seconds(work: Callable[[], object], seconds: float = _SECONDS) -> float:
    """Return the minimum seconds of one call of `work`, after a warm-up call.

    Calls repeat for about `seconds`, and at least once.
    """
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        work()
        ended = time.perf_counter()
        best = min(best, ended - began)
        if ended >= end:
            return best
