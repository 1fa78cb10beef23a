"""Kernels of a forward: real events of the CPU, events as of a GPU, and the report's aims."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from lopa.bench.forward.work import ForwardShape
from lopa.bench.gpu.device import gpu_machine_now
from lopa.bench.gpu.kernel_times import FORWARDS, KernelTimes, kernel_times, profile_kernels
from lopa.bench.gpu.markdown import markdown_from_results
from lopa.bench.gpu.results import GpuResults, KernelsResult


def event(name: str, start: float, end: float, device: DeviceType = DeviceType.CUDA, **others: bool) -> FunctionEvent:
    """Return an event with times in microseconds."""
    return FunctionEvent(0, name, 0, start, end, device_type=device, **others)  # type: ignore[no-untyped-call]


def test_real_events_of_the_cpu() -> None:
    large, small = torch.ones(1 << 20), torch.ones(4)

    def forward() -> None:
        torch.sin(large)
        torch.cos(small)
        torch.cos(small)

    found = profile_kernels(forward, "cpu")
    assert [(name, launches) for name, launches, _ in found.longest] == [("aten::sin", 1), ("aten::cos", 2)]
    assert found.launches == 3
    assert found.busy == pytest.approx(sum(seconds for *_, seconds in found.longest), rel=1e-3)
    with pytest.raises(ValueError, match="nothing on the device CUDA"):
        profile_kernels(forward, "cuda:0")


def test_overlapping_kernels_are_busy_once() -> None:
    events = [
        event("attention", 3000, 7000),
        event("product", 0, 5000),
        event("copy", 1000, 2000),  # on another stream
        event("product", 10000, 15000),
        event("cudaLaunchKernel", 0, 90000, DeviceType.CPU),
        event("a range of the user", 0, 90000, is_user_annotation=True),
    ]
    found = kernel_times(events, "CUDA")
    assert found.busy * FORWARDS == pytest.approx(0.012)
    assert found.launches * FORWARDS == 4
    name, launches, seconds = found.longest[0]
    assert (name, launches * FORWARDS, seconds * FORWARDS) == ("product", 2, pytest.approx(0.010))
    assert [each[0] for each in found.longest] == ["product", "attention", "copy"]
    many = [event(f"kernel {i}", 100 * i, 100 * i + i) for i in range(1, 31)]
    assert [each[0] for each in kernel_times(many, "CUDA").longest] == [f"kernel {i}" for i in range(30, 18, -1)]


def test_the_aims() -> None:
    shape = ForwardShape(4, 64, 512, wanted=64)
    fast, slow = KernelTimes(301, 7.5e-3, ()), KernelTimes(300, 7.7e-3, (("product", 28, 3e-3),))
    kernels = tuple(KernelsResult("bfloat16", "lopa cuda:0", shape, each) for each in (fast, slow))
    results = GpuResults("gpu", "dream-7b", gpu_machine_now("cpu"), (), 1, (shape,), kernels=kernels)
    text = markdown_from_results(results)
    assert "7.6 ms: met; 300 launches: not met" in text
    assert "7.6 ms: not met; 300 launches: met" in text
    assert "product" in text
    assert "launches: met" not in markdown_from_results(replace(results, likeness="dream-0.5b"))
