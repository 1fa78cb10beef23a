"""Rules that the stand-ins for TensorRT's runtime and for CUDA graphs enforce."""

import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.buckets import bucket
from tests.runtime.cuda.stand_in_graphs import CaptureCode, StandInGraphs
from tests.runtime.random_windows import random_batch
from tests.runtime.tensorrt.machines import built
from tests.runtime.tensorrt.stand_in_engine import SCRATCH
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.accelerator.graph_form import ContractForm
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import past_names
from lopa.runtime.cuda.cuda_calls import CudaCalls
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.graphs import CaptureError, CudaGraphs
from lopa.runtime.tensorrt.plan_file import stream_reader
from lopa.runtime.tensorrt.tensorrt_manifest import PLAN_NAME, TENSORRT_ENGINES

BUCKET = bucket(1, 2, 8, 64)


class Bench:
    """A context of a plan with one shape bucket, with all its memory and ready to run."""

    def __init__(self, bundle: Bundle, trt: ModuleType, cuda: StandInGraphs) -> None:
        self.trt, self.cuda, manifest = trt, cuda, bundle.manifest
        self.calls = CudaCalls(cuda)
        self.memory = CudaMemory(self.calls, 0)
        self.messages: list[str] = []
        bench = self

        class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: Any, msg: str) -> None:  # noqa: ARG002
                bench.messages.append(msg)

        self.runtime = trt.Runtime(Logger())
        (folder,) = TENSORRT_ENGINES.folders(bundle)
        self.plan = (folder / PLAN_NAME).read_bytes()
        self.engine = self.open_plan(self.plan)
        arrays = GraphArrays(manifest)
        self.shapes = arrays.input_shapes(BUCKET)
        sizes = arrays.bytes_without_prefix(BUCKET)
        item = 4
        sizes |= {name: math.prod(self.shapes[name]) * item for name in past_names(manifest.dimensions.layers)}
        self.addresses = {name: self.memory.allocate(size) for name, size in sizes.items()}
        for name, size in sizes.items():
            self.memory.fill_zero(self.addresses[name], size)
        batch = random_batch(np.random.default_rng(0), (0,), 2, 8, BUCKET.wanted)
        for name, array in ContractForm().inputs(batch, np.zeros((1, 64), np.bool_)).items():
            self.memory.upload(self.addresses[name], array)
        self.scratch = self.memory.allocate(SCRATCH)
        self.context = self.new_context()

    def open_plan(self, plan: bytes) -> Any:
        return self.runtime.deserialize_cuda_engine(stream_reader_v2=stream_reader(self.trt, io.BytesIO(plan)))

    def new_context(self) -> Any:
        context = self.engine.create_execution_context(self.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        context.set_device_memory(self.scratch, SCRATCH)
        assert context.set_optimization_profile_async(0, self.memory.stream)
        for name, shape in self.shapes.items():
            assert context.set_input_shape(name, shape)
        for name, address in self.addresses.items():
            assert context.set_tensor_address(name, address)
        return context

    def run(self) -> bool:
        return bool(self.context.execute_async_v3(self.memory.stream))

    def capture(self) -> Any:
        return CudaGraphs(self.calls, self.memory.stream).capture(self.run)

    @property
    def violations(self) -> list[str]:
        return list(self.trt.engines.violations)


@pytest.fixture
def bench(tiny_bundle: Path, tmp_path: Path) -> Bench:
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    cuda = StandInGraphs()
    trt = stand_in_tensorrt(11, cuda=cuda)
    built(path, trt, [BUCKET])
    return Bench(Bundle.open(path), trt, cuda)


def test_plain_forward_and_graph(bench: Bench) -> None:
    assert bench.run()
    graph = bench.capture()
    bench.memory.synchronize()
    bench.calls("cudaGraphLaunch", graph, bench.memory.stream)
    bench.memory.synchronize()
    bench.calls("cudaGraphExecDestroy", graph)
    bench.memory.close()
    assert (bench.violations, bench.cuda.violations, bench.cuda.left) == ([], [], [])
    assert bench.trt.engines.forwards == [(0, "plain"), (0, "captured")]


def _no_shape(bench: Bench) -> None:
    assert bench.context.set_optimization_profile_async(0, bench.memory.stream)  # resets the shapes


def _no_address(bench: Bench) -> None:
    bench.addresses.pop("entropy")
    bench.context = bench.new_context()


def _little_memory(bench: Bench) -> None:
    bench.context.set_device_memory(bench.scratch, SCRATCH - 1)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (_no_shape, "no shape of"),
        (_no_address, "no address of ['entropy']"),
        (_little_memory, "too little memory"),
    ],
)
def test_forward_requirements(corrupt: Callable[[Bench], None], message: str, bench: Bench) -> None:
    corrupt(bench)
    assert not bench.run()
    assert message in bench.messages[-1]


@pytest.mark.parametrize(
    ("flag", "message"), [("STRIP_PLAN", "weights were not refitted"), ("WEIGHT_STREAMING", "budget")]
)
def test_context_requirements(flag: str, message: str, bench: Bench) -> None:
    plan = json.loads(bench.plan) | {"flags": [flag]}
    bench.engine = bench.open_plan(json.dumps(plan).encode())
    with pytest.raises(AssertionError, match=message):
        bench.new_context()


@pytest.mark.parametrize("what", ["shape", "address", "memory", "profile"])
def test_context_must_not_change_while_its_graph_exists(what: str, bench: Bench) -> None:
    bench.run()
    graph = bench.capture()
    change = {
        "shape": lambda: bench.context.set_input_shape("input_ids", bench.shapes["input_ids"]),
        "address": lambda: bench.context.set_tensor_address("entropy", bench.addresses["entropy"]),
        "memory": lambda: bench.context.set_device_memory(bench.scratch, SCRATCH),
        "profile": lambda: bench.context.set_optimization_profile_async(0, bench.memory.stream),
    }[what]
    change()
    assert bench.violations == [f"the {what} of a context was set while its graph exists"]
    bench.memory.synchronize()
    bench.calls("cudaGraphExecDestroy", graph)
    change()
    assert len(bench.violations) == 1


def test_graph_detects_a_changed_context(bench: Bench) -> None:
    bench.run()
    graph = bench.capture()
    bench.context.state.addresses["entropy"] += 4
    bench.calls("cudaGraphLaunch", graph, bench.memory.stream)
    bench.memory.synchronize()
    assert "a graph ran after its context got another shape or address" in bench.violations


def test_capture_needs_a_plain_forward_first(bench: Bench) -> None:
    bench.capture()
    assert bench.violations == ["captured without a plain forward after a shape was set"]


def test_context_has_one_graph(bench: Bench) -> None:
    bench.run()
    bench.capture()
    bench.capture()
    assert bench.violations == ["a context was captured again while its graph exists"]


def test_invalidated_capture_raises(bench: Bench) -> None:
    """The stream stays usable."""
    graphs = CudaGraphs(bench.calls, bench.memory.stream)
    bench.run()
    with pytest.raises(CaptureError, match=CaptureCode.cudaErrorStreamCaptureInvalidated.name):
        graphs.capture(lambda: bench.cuda.invalidate_capture(bench.memory.stream))

    def fails() -> None:
        raise RuntimeError("no forward")

    with pytest.raises(CaptureError, match="no forward"):
        graphs.capture(fails)
    assert bench.cuda.graphs == []
    bench.memory.synchronize()
    bench.memory.close()
    assert bench.cuda.left == []
