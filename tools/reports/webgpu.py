"""Compare caches in device memory with caches on the host, on one WebGPU adapter.

Usage: python -m tools.measure webgpu BUNDLE [--turns N] [--prefix N]

A step is a forward and the commit of 16 rows. The bundle needs a portable graph. On a software adapter only the ratios
within one run are meaningful.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from lopa.bench.forward.random_inputs import random_prefix_rows, random_window
from lopa.bench.forward.work import ForwardShape
from lopa.bench.table import ms_text, table_from_records
from lopa.bench.turns import median_ratio, run_in_turns
from lopa.runtime.accelerator.arrays import GraphArrays
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CacheRows, tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.device_families import parse_device
from lopa.runtime.sessions.sequential_session import SequentialSession
from lopa.runtime.webgpu.webgpu_library import webgpu_device
from lopa.runtime.webgpu.webgpu_memory import WebGpuMemory
from lopa.runtime.webgpu.webgpu_session import session_with_device_caches, session_with_host_caches
from tools.report import show_report

BRANCHES = (1, 4, 8)
_WINDOW, _SAMPLED, _COMMITTED = 32, 32, 16


@dataclass(frozen=True)
class Comparison:
    """Steps with one number of branches, in turns."""

    branches: int
    on_host: Sequence[float]
    """Seconds of each step."""
    on_device: Sequence[float]
    host_bytes: int
    """Bytes that a step copies between host and device."""
    device_bytes: int


def compare(bundle: Bundle, device: str, turns: int, prefix: int) -> list[Comparison]:
    """Return the comparisons for BRANCHES. `bundle` has a portable graph only."""
    adapter, manifest = webgpu_device(device), bundle.manifest
    on_device = session_with_device_caches(bundle, device, adapter)
    on_host = session_with_host_caches(bundle, device, adapter)
    memory = on_device.memory
    assert isinstance(memory, WebGpuMemory)
    found = []
    for branches in BRANCHES:
        shape = ForwardShape(branches=branches, window=_WINDOW, prefix=prefix, wanted=_SAMPLED)
        rows = random_prefix_rows(manifest, prefix, np.random.default_rng(0))

        def step(
            session: SequentialSession, turn: int, shape: ForwardShape = shape, rows: CacheRows = rows
        ) -> tuple[float, int]:
            """Return the seconds of a forward and a commit, and the bytes that device caches copy."""
            session.free(0)
            session.append_rows(0, rows)
            batch = random_window(manifest, 0, shape, np.random.default_rng(turn))
            before, start = memory.transfers.total, time.perf_counter()
            session.forward(batch)
            session.commit(0, shape.branches - 1, _COMMITTED)
            return time.perf_counter() - start, memory.transfers.total - before

        steps = {
            "host": partial(step, SequentialSession(on_host)),
            "device": partial(step, SequentialSession(on_device)),
        }
        for each in steps.values():
            each(0)  # compiles the shaders
        results = run_in_turns(steps, turns)
        seconds = {name: [each for each, _ in result] for name, result in results.items()}
        device_bytes = results["device"][0][1]
        found.append(
            Comparison(branches, seconds["host"], seconds["device"], _host_bytes(manifest, shape), device_bytes)
        )
    on_device.close()
    on_host.close()
    return found


def _host_bytes(manifest: Manifest, shape: ForwardShape) -> int:
    """Return the bytes of all inputs and outputs, which host caches copy in every forward."""
    arrays = GraphArrays(manifest)
    sizes = Sizes(1, shape.branches, shape.window, tiles(shape.prefix), shape.wanted)
    return sum(arrays.bytes_without_prefix(sizes).values()) + arrays.prefix_bytes(sizes)


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", default="webgpu:0", show_default=True)
@click.option("--turns", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--prefix", default=256, show_default=True, type=click.IntRange(min=1), help="Cached rows.")
def main(bundle: Path, device: str, turns: int, prefix: int) -> None:
    """Measure and print."""
    parse_device(device, "webgpu")
    found = compare(Bundle.open(bundle).with_dialect("portable"), device, turns, prefix)
    columns: dict[str, Callable[[Comparison], str]] = {
        "branches": lambda each: str(each.branches),
        "host caches, ms": lambda each: ms_text(statistics.median(each.on_host)),
        "device caches, ms": lambda each: ms_text(statistics.median(each.on_device)),
        "host / device": lambda each: f"{median_ratio(each.on_host, each.on_device):.2f}",
        "host caches, kB": lambda each: f"{each.host_bytes / 1e3:.0f}",
        "device caches, kB": lambda each: f"{each.device_bytes / 1e3:.0f}",
    }
    show_report([table_from_records(f"Steps of {device} after {prefix} cached tokens", found, columns)])
