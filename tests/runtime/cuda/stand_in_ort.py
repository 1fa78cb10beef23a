"""A stand-in for ONNX Runtime's CUDA provider: sessions over the stand-in CUDA runtime.

It is not vendor software, and nothing in it is recorded. It accepts memory of stand_in_cudart only, enqueues forwards
on the session's stream, and computes them with ONNX Runtime on the CPU on synchronization. It is strict. Violations of
the documentation of CUDA graphs and IOBinding raise ViolationError, even if ONNX Runtime would silently compute
something else. CPU sessions are ONNX Runtime's own.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from tests.runtime.accelerator.host_blocks import ViolationError
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda_kernels.stand_in_driver import StandInDriver

from lopa.runtime.cuda import cuda_operators

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
OPTIONS = {"device_id", "user_compute_stream", "do_copy_in_default_stream", "enable_cuda_graph", "use_tf32"}
_TYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(bfloat16)": 16,
}
_RealSession = ort.InferenceSession


@dataclass(frozen=True)
class Bound:
    """An array bound to an address."""

    device: int
    element_type: Any
    shape: tuple[int, ...]
    address: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape)) * np.dtype(np.uint16 if self.element_type == 16 else self.element_type).itemsize


class StandInBinding:
    """IOBinding for arrays on a CUDA device."""

    def __init__(self, session: "StandInSession") -> None:
        self.session = session
        self.inputs: dict[str, Bound] = {}
        self.outputs: dict[str, Bound] = {}

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Any, buffer_ptr: int
    ) -> None:
        self.inputs[name] = self._bound(name, device_type, device_id, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: int | None = None,
    ) -> None:
        self.outputs[name] = self._bound(name, device_type, device_id, element_type, shape, buffer_ptr)

    def _bound(self, name: str, device_type: str, device: int, element_type: Any, shape: Any, address: Any) -> Bound:
        require = self.session.machine.require
        require(device_type == "cuda" and device == self.session.device, f"{name} bound on {device_type}:{device}")
        require(address is not None, f"{name} bound without memory")
        require(element_type == self.session.types[name], f"{name} bound as {element_type}")
        self.session.machine.binds += 1
        return Bound(device, element_type, tuple(shape), address)


class StandInSession:
    """InferenceSession on a CUDA device."""

    def __init__(self, machine: "StandInOrt", path: str, options: dict[str, str], *, keeps_products: bool) -> None:
        require = machine.require
        require(set(options) <= OPTIONS, f"options {sorted(options)}")
        require(all(isinstance(value, str) for value in options.values()), "options that are not strings")
        require(
            options.get("do_copy_in_default_stream", "1") == "1", "copies on separate streams race with the forward"
        )
        require(options.get("use_tf32") in ("0", "1"), "use_tf32 left to its default, which is 1")
        self.tf32 = options["use_tf32"] == "1"
        self.machine, self.path = machine, path
        machine.cudart.require_alone("opening a graph")
        self.device = int(options.get("device_id", 0))
        self.stream = int(options["user_compute_stream"])
        require(machine.cudart.stream_device(self.stream) == self.device, "a stream of another device")
        self.with_graphs = options.get("enable_cuda_graph", "0") == "1"
        if self.with_graphs and machine.unsupported:
            raise Fail(
                "This session cannot use the graph capture feature as requested by the user as all compute graph nodes "
                "have not been partitioned to the CUDAExecutionProvider"
            )
        self._real = _real_session(Path(path), Path(path).stat().st_mtime_ns, machine.driver, keeps_products)
        self.types = {each.name: _TYPES[each.type] for each in (*self._real.get_inputs(), *self._real.get_outputs())}
        self._signatures: dict[tuple[int, int], tuple[dict[str, Bound], dict[str, Bound]]] = {}

    def get_providers(self) -> list[str]:
        return [CUDA, CPU]

    def get_inputs(self) -> Sequence[Any]:
        return self._real.get_inputs()  # type: ignore[no-any-return]

    def get_outputs(self) -> Sequence[Any]:
        return self._real.get_outputs()  # type: ignore[no-any-return]

    def io_binding(self) -> StandInBinding:
        return StandInBinding(self)

    def run_with_iobinding(self, iobinding: StandInBinding, run_options: Any = None) -> None:
        require, cudart = self.machine.require, self.machine.cudart
        if self.machine.failures:
            raise RuntimeError(self.machine.failures.pop())
        cudart.require_alone("a forward")
        require(iobinding.session is self, "a binding of another session")
        require(set(iobinding.inputs) == {each.name for each in self._real.get_inputs()}, "inputs not all bound")
        require(set(iobinding.outputs) == {each.name for each in self._real.get_outputs()}, "outputs not all bound")
        bound = (dict(iobinding.inputs), dict(iobinding.outputs))
        for arrays in bound:
            for name, each in arrays.items():
                require(cudart.device_of(each.address, each.size) == self.device, f"{name} is memory of another device")
        graph = self._graph(run_options)
        addresses = tuple(each.address for arrays in bound for each in arrays.values())
        if graph is None:
            self.machine.plain_runs += 1
            cudart.enqueue(self.stream, lambda: self._compute(bound), addresses)
        else:
            self._run_graph(graph, bound, addresses)
        if _entry(run_options, "disable_synchronize_execution_providers") != "1":
            self.machine.waits += 1
            cudart.cudaStreamSynchronize(self.stream)

    def _graph(self, options: Any) -> int | None:
        """Return the number of the graph to capture or replay, or None."""
        entry = _entry(options, "gpu_graph_id")
        if not self.with_graphs:
            self.machine.require(entry is None, "a graph number for a session without graphs")
            return None
        number = int(entry or "0")
        self.machine.require(number != 0, "gpu_graph_id 0 is reserved")
        return None if number == -1 else number

    def _run_graph(self, number: int, bound: tuple[dict[str, Bound], dict[str, Bound]], uses: tuple[int, ...]) -> None:
        machine, thread = self.machine, threading.get_ident()
        others = {each for each, graph in self._signatures if graph == number} - {thread}
        machine.require(not others, f"graph {number} on another thread than its capture")
        signature = self._signatures.get((thread, number))
        if signature is None:
            with machine.cudart.capturing():
                machine.cudart.drain(self.stream)
                self._compute(bound)  # the runs before a capture, which allocate memory
            machine.captures.append((self.device, number))
            self._signatures[thread, number] = bound
        else:
            # ONNX Runtime would ignore the binding, because the graph contains addresses and shapes.
            machine.require(signature == bound, f"graph {number} was captured with other addresses or shapes")
            machine.replays += 1
        machine.cudart.enqueue(self.stream, lambda: self._compute(bound), uses)

    def _compute(self, bound: tuple[dict[str, Bound], dict[str, Bound]]) -> None:
        view, (inputs, outputs) = self.machine.cudart.view, bound
        if self.machine.driver is not None:
            self.machine.driver.set_device(self.device)
        arrays = {
            name: view(each.address, each.size).view(each.element_type).reshape(each.shape)
            for name, each in inputs.items()
        }
        for name, array in arrays.items():
            written = name == "attention_scratch" or bool(np.isfinite(array).all())
            self.machine.require(written, f"{name} was not written")
        for name, array in zip(outputs, self._real.run(list(outputs), arrays), strict=True):
            each = outputs[name]
            self.machine.require(array.shape == each.shape, f"{name} is {array.shape}, bound as {each.shape}")
            view(each.address, each.size)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class StandInOrt:
    """ONNX Runtime on a machine with CUDA devices."""

    def __init__(self, cudart: StandInCudart, driver: StandInDriver | None = None) -> None:
        self.cudart, self.driver = cudart, driver
        self.captures: list[tuple[int, int]] = []
        """Device and number of every captured graph."""
        self.replays = self.plain_runs = self.waits = self.binds = 0
        self.unsupported = False
        """True if some operator does not run on CUDA."""
        self.starts = True
        """True if the provider starts."""
        self.failures: list[str] = []
        """Messages of the errors that the next runs raise."""
        self.sessions: list[StandInSession] = []

    def session(self, path: str, options: Any = None, *, providers: Any = None, **others: Any) -> Any:
        """Open a session, like InferenceSession."""
        name, chosen = providers[0] if isinstance(providers[0], tuple) else (providers[0], {})
        if name != CUDA or not self.starts:
            return _RealSession(path, options, providers=[CPU], **others)
        keeps_products = _keeps_products(options)
        self.sessions.append(StandInSession(self, path, chosen, keeps_products=keeps_products))
        return self.sessions[-1]

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(ort, "InferenceSession", self.session)
        patch.setattr(ort, "get_available_providers", lambda: [CUDA, CPU])
        if self.driver is None:
            patch.setattr(cuda_operators, "cuda_library", lambda: None)  # there is no driver to load kernels

    def require(self, condition: bool, rule: str) -> None:
        if not condition:
            self.cudart.violations.append(rule)
            raise ViolationError(rule)


def _entry(options: Any, key: str) -> str | None:
    try:
        return None if options is None else options.get_run_config_entry(key)
    except RuntimeError:  # not set
        return None


def _keeps_products(options: Any) -> bool:
    try:
        return options is not None and options.get_session_config_entry("session.disable_quant_qdq") == "1"
    except RuntimeError:  # not set
        return False


@cache
def _real_session(path: Path, changed: int, driver: StandInDriver | None, keeps_products: bool) -> Any:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", str(int(keeps_products)))
    if driver is not None:
        driver.library.add_operators(options)
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # as on CUDA
    return _RealSession(str(path), options, providers=[CPU])
