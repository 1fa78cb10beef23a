"""What a message between devices costs: latency and bytes per second of a link, published or measured here.

Knows numbers and where they are from. The published ones are what others measured on accelerators and network cards;
nothing of that kind is in this machine.
"""

import statistics
import time
from dataclasses import dataclass

import numpy as np

from lopa.runtime.sessions.device_worker import DeviceWorker, keep_thread_on

SHARED_MEMORY = "shared memory"
_MESSAGES = 400
_COPIES = 40
_COPIED_BYTES = 4 << 20
"""About the committed rows of a block of a large model."""


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes latency + n / bandwidth seconds."""

    name: str
    latency: float
    """Seconds, one way."""
    bandwidth: float
    """Bytes per second, one way."""
    source: str


PUBLISHED_LINKS = (
    Link(
        "PCIe",
        19.6e-6,
        37e9,
        "both measured by NVIDIA's p2pBandwidthLatencyTest with P2P off, so through host memory: bandwidth on 8 x H100 "
        "(github.com/NVIDIA/nccl issue 1264), latency the largest of 4 GPUs (github.com/NVIDIA/cuda-samples issue 230)",
    ),
    Link(
        "NVLink",
        2.3e-6,
        375e9,
        "the same test with P2P on: bandwidth on 8 x H100 (NVLink 4, nccl issue 1264), latency the largest of 4 GPUs "
        "(cuda-samples issue 230)",
    ),
    Link(
        "100 GbE",
        11.6e-6,
        12.5e9,
        "bandwidth: the line rate, 100 Gbit/s (IEEE 802.3ba); latency: half a UDP round trip through the kernel on a "
        "ConnectX-4, 47,362 of them in 1.1 s (github.com/Mellanox/libvma issue 265)",
    ),
)


def shared_memory_link(core: int) -> Link:
    """Measure what threads of this process pay: waking the other one on `core`, and copying.

    Latency is half of a call of another thread that does nothing; bandwidth is that of one thread's copy, the source
    read once for each byte written. Medians.
    """
    worker = DeviceWorker("lopa link test")
    worker.submit(lambda: keep_thread_on([core])).result()
    calls = []
    for _ in range(_MESSAGES):
        began = time.perf_counter()
        worker.submit(_nothing).result()
        calls.append(time.perf_counter() - began)
    worker.stop()
    source, target = np.ones(_COPIED_BYTES, np.uint8), np.zeros(_COPIED_BYTES, np.uint8)
    copies = []
    for _ in range(_COPIES):
        began = time.perf_counter()
        np.copyto(target, source)
        copies.append(time.perf_counter() - began)
    return Link(
        SHARED_MEMORY,
        statistics.median(calls) / 2,
        _COPIED_BYTES / statistics.median(copies),
        f"measured on this machine: half a call of another thread, a copy of {_COPIED_BYTES >> 20} MiB",
    )


def _nothing() -> None:
    pass
