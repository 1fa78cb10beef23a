"""Latency and bandwidth of links between devices. Shared memory is measured here, other links have published values."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lopa.runtime.sessions.device_worker import DeviceWorker, pin_thread

SHARED_MEMORY = "shared memory"
_MESSAGES = 400
_COPIES = 40
_COPIED_BYTES = 4 << 20
"""Bytes of a measured copy, about as large as the committed rows of a block of a large model."""


@dataclass(frozen=True)
class DeviceLink:
    """A link. A message of n bytes takes latency + n / bandwidth seconds."""

    name: str
    latency: float
    """One-way latency in seconds."""
    bandwidth: float
    """One-way bandwidth in bytes per second."""
    source: str


PUBLISHED_LINKS = (
    DeviceLink(
        "PCIe",
        19.6e-6,
        37e9,
        "NVIDIA's p2pBandwidthLatencyTest with P2P off, thus through host memory: bandwidth on 8 x H100 "
        "(github.com/NVIDIA/nccl issue 1264), maximum latency of 4 GPUs (github.com/NVIDIA/cuda-samples issue 230)",
    ),
    DeviceLink(
        "NVLink",
        2.3e-6,
        375e9,
        "the same test with P2P on: bandwidth on 8 x H100 (NVLink 4, nccl issue 1264), maximum latency of 4 GPUs "
        "(cuda-samples issue 230)",
    ),
    DeviceLink(
        "100 GbE",
        11.6e-6,
        12.5e9,
        "bandwidth: the line rate, 100 Gbit/s (IEEE 802.3ba); latency: half a UDP round trip through the kernel on a "
        "ConnectX-4, 47,362 round trips in 1.1 s (github.com/Mellanox/libvma issue 265)",
    ),
)


def shared_memory_link(core: int) -> DeviceLink:
    """Measure the link between threads of this process.

    The latency is half the time of an empty call of a thread on `core`. The bandwidth is measured by a copy in one
    thread. Both are medians.
    """
    worker = DeviceWorker("lopa link test")
    worker.submit(lambda: pin_thread([core])).result()
    call = _median_seconds(lambda: worker.submit(lambda: None).result(), _MESSAGES)
    worker.stop()
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    copy = _median_seconds(lambda: np.copyto(target, source), _COPIES)
    return DeviceLink(
        SHARED_MEMORY,
        call / 2,
        _COPIED_BYTES / copy,
        f"measured on this machine: half a call of another thread, a copy of {_COPIED_BYTES >> 20} MiB",
    )


def _median_seconds(work: Callable[[], object], calls: int) -> float:
    seconds = []
    for _ in range(calls):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
