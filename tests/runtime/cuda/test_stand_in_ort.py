"""Rules that the stand-in for ONNX Runtime's CUDA provider enforces."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tests.buckets import bucket
from tests.runtime.accelerator.host_blocks import ViolationError
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.bundle import Bundle

SHAPE = bucket(1, 2, 20, 64)


class BoundForward:
    """A session on device 0 with all arrays of a forward."""

    def __init__(self, bundle: Bundle, *, graphs: bool = True, **options: str) -> None:
        self.cudart = StandInCudart(2)
        self.machine = StandInOrt(self.cudart)
        self.bundle = bundle
        self.cudart.cudaSetDevice(0)
        self.stream = int(self.cudart.cudaStreamCreateWithFlags(1)[1])
        self.path = str(bundle.graph)
        self.options = {
            "device_id": "0",
            "use_tf32": "0",
            "user_compute_stream": str(self.stream),
            "enable_cuda_graph": str(int(graphs)),
            **options,
        }
        self.session = self.open()
        arrays = GraphArrays(bundle.manifest)
        self.inputs, self.outputs = arrays.inputs(SHAPE), arrays.outputs(SHAPE)
        self.places = {name: self.allocate(array.size) for name, array in (self.inputs | self.outputs).items()}
        rng = np.random.default_rng(0)
        for name, array in self.inputs.items():
            values = rng.integers(1, 20, array.shape).astype(array.dtype)
            self.cudart.view(self.places[name], array.size)[:] = values.reshape(-1).view(np.uint8)
        self.binding = self.bound()

    def open(self) -> Any:
        return self.machine.session(self.path, providers=[("CUDAExecutionProvider", self.options)])

    def allocate(self, size: int) -> int:
        return self.cudart.cudaMalloc(size)[1]  # type: ignore[no-any-return]

    def bound(self, **places: int) -> Any:
        binding, where = self.session.io_binding(), self.places | places
        for name, array in self.inputs.items():
            binding.bind_input(name, "cuda", 0, array.dtype.type, array.shape, where[name])
        for name, array in self.outputs.items():
            binding.bind_output(name, "cuda", 0, array.dtype.type, array.shape, where[name])
        return binding

    def run(self, graph: int | None = 1, binding: Any = None, *, wait: bool = False) -> None:
        options = ort.RunOptions()
        if not wait:
            options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        if graph is not None:
            options.add_run_config_entry("gpu_graph_id", str(graph))
        self.session.run_with_iobinding(binding or self.binding, options)

    def synchronize(self) -> None:
        self.cudart.cudaStreamSynchronize(self.stream)

    def entropy(self) -> np.ndarray:
        return self.cudart.view(self.places["entropy"], self.outputs["entropy"].size).view(np.float32).copy()


def run_on_new_thread(work: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@pytest.fixture
def forward(tiny_bundle: Path) -> BoundForward:
    return BoundForward(Bundle.open(tiny_bundle))


def run_elsewhere(forward: BoundForward, name: str) -> None:
    """Run with one array in memory that differs from the graph's."""
    forward.run()
    array = (forward.inputs | forward.outputs)[name]
    other = forward.allocate(array.size)
    forward.cudart.view(other, array.size)[:] = 0
    forward.run(binding=forward.bound(**{name: other}))


def free_after_capture(forward: BoundForward) -> None:
    forward.run()
    forward.synchronize()
    forward.cudart.cudaFree(forward.places["entropy"])
    forward.run()


def memory_of_another_device(forward: BoundForward) -> None:
    forward.cudart.cudaSetDevice(1)
    place = forward.allocate(forward.inputs["temperature"].size)
    forward.cudart.cudaSetDevice(0)
    forward.run(binding=forward.bound(temperature=place))


def stream_of_another_device(forward: BoundForward) -> None:
    forward.options["device_id"] = "1"
    forward.open()


def other_shape(forward: BoundForward) -> None:
    forward.run()
    binding = forward.bound()
    binding.bind_output("entropy", "cuda", 0, np.float32, (1, 1, 40), forward.places["entropy"])
    forward.run(binding=binding)


def another_thread(forward: BoundForward) -> None:
    forward.run()

    def again() -> None:
        forward.cudart.cudaSetDevice(0)
        forward.run()

    run_on_new_thread(again)


def call_during_a_capture(forward: BoundForward) -> None:
    with forward.cudart.capturing():
        run_on_new_thread(lambda: forward.cudart.cudaSetDevice(0))


def forward_during_a_capture(forward: BoundForward) -> None:
    with forward.cudart.capturing():
        run_on_new_thread(lambda: forward.run(-1))


def opening_during_a_capture(forward: BoundForward) -> None:
    with forward.cudart.capturing():
        run_on_new_thread(forward.open)


def options_of(**options: Any) -> Callable[[BoundForward], object]:
    def open_with(forward: BoundForward) -> None:
        forward.options |= options
        forward.open()

    return open_with


def options_without(name: str) -> Callable[[BoundForward], object]:
    def open_without(forward: BoundForward) -> None:
        del forward.options[name]
        forward.open()

    return open_without


WRONG: dict[str, tuple[str, Callable[[BoundForward], object]]] = {
    "number 0": ("0 is reserved", lambda f: f.run(0)),
    "an input elsewhere": ("with other addresses", lambda f: run_elsewhere(f, "input_ids")),
    "a prefix elsewhere": ("with other addresses", lambda f: run_elsewhere(f, "past_key_values.1.key")),
    "an output elsewhere": ("with other addresses", lambda f: run_elsewhere(f, "entropy")),
    "another shape": ("with other addresses or shapes", other_shape),
    "memory that is gone": ("is no memory|not all allocated", free_after_capture),
    "another thread": ("another thread", another_thread),
    "memory of another device": ("another device", memory_of_another_device),
    "stream of another device": ("another device", stream_of_another_device),
    "copies that race": ("race", options_of(do_copy_in_default_stream="0")),
    "products in TF32 by default": ("use_tf32 left to its default", options_without("use_tf32")),
    "a call during a capture": ("while another thread captures", call_during_a_capture),
    "a forward during a capture": ("a forward while another thread captures", forward_during_a_capture),
    "opening during a capture": ("opening a graph while another thread captures", opening_during_a_capture),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_raises(name: str, forward: BoundForward) -> None:
    rule, work = WRONG[name]
    with pytest.raises(ViolationError, match=rule):
        work(forward)
    assert len(forward.cudart.violations) == 1


def test_graph_number_without_graphs_raises(tiny_bundle: Path) -> None:
    forward = BoundForward(Bundle.open(tiny_bundle), graphs=False)
    with pytest.raises(ViolationError, match="session without graphs"):
        forward.run(1)


def test_captured_replayed_and_plain_runs_match(forward: BoundForward) -> None:
    found = []
    for graph in (-1, 1, 1, 2, -1):
        captures = len(forward.machine.captures)
        forward.cudart.view(forward.places["entropy"], 8)[:] = 0xFF
        forward.run(graph)
        if len(forward.machine.captures) == captures:
            assert np.isnan(forward.entropy()[:2]).all()  # nothing runs before synchronization
        forward.synchronize()
        found.append(forward.entropy())
    assert all(np.array_equal(each, found[0]) for each in found)
    assert forward.machine.captures == [(0, 1), (0, 2)]
    assert (forward.machine.replays, forward.machine.plain_runs, forward.machine.waits) == (1, 2, 0)
    forward.run(-1, wait=True)
    assert forward.machine.waits == 1
