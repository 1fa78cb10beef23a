"""Rates of matrix products and memory, which limit the time of a forward."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class MachineRates:
    """Maximum rates of a device."""

    float32: float
    """Operations per second of a float32 product. A multiply-add counts as two."""
    int8: float
    """Operations per second of an int8 product."""
    bandwidth: float
    """Bytes per second of a large copy, reads plus writes."""


def min_seconds(work: Callable[[], object], seconds: float) -> float:
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
