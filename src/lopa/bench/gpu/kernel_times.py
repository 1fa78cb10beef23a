"""Kernels of a forward by torch.profiler, which also sees those of ONNX Runtime and of captured graphs."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import profile

FORWARDS = 5
_LONGEST = 12


@dataclass(frozen=True)
class KernelTimes:
    """Kernels and copies of a forward."""

    launches: float
    busy: float
    """Seconds in which at least one of them runs."""
    longest: tuple[tuple[str, float, float], ...]
    """Name, launches and seconds of the longest ones."""


def profile_kernels(forward: Callable[[], object], device: str) -> KernelTimes:
    """Run `forward` a few times after a warm-up. Raises ValueError if the profiler sees no kernels."""
    for _ in range(2):
        forward()
    with profile() as profiler:
        for _ in range(FORWARDS):
            forward()
    return kernel_times(profiler.events() or (), "CPU" if device == "cpu" else "CUDA")


def kernel_times(events: Iterable[FunctionEvent], device: str) -> KernelTimes:
    """Return the means over FORWARDS of the events on "CPU" or "CUDA". Raises ValueError if there are none."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.device_type.name == device and not event.is_user_annotation:
            spans[event.name].append((event.time_range.start, event.time_range.end))
    if not spans:
        raise ValueError(f"torch.profiler saw nothing on the device {device}")
    every = sorted(span for found in spans.values() for span in found)
    busy, reached = 0.0, every[0][0]
    for start, end in every:  # kernels overlap with programmatic dependent launch
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    totals = {name: sum(end - start for start, end in found) for name, found in spans.items()}
    longest = sorted(totals, key=totals.__getitem__, reverse=True)[:_LONGEST]
    return KernelTimes(
        len(every) / FORWARDS,
        busy / FORWARDS / 1e6,
        tuple((name, len(spans[name]) / FORWARDS, totals[name] / FORWARDS / 1e6) for name in longest),
    )
