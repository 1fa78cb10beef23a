"""A stand-in for pyACL (CANN's module `acl`) over the stand-in atc's "OM", with the documented calls, tuples and codes.

It is not vendor software, and nothing in it is recorded. It is strict. Violations of the documentation raise
ViolationError and are recorded in `violations`. Calls return documented codes if our code handles them. ONNX Runtime
computes forwards on the CPU. Work of a stream runs only on synchronization. Device memory starts with garbage, and its
addresses are valid in this module only.

`trace` records every call as text.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
from tests.runtime.accelerator.host_blocks import HostBlocks
from tests.runtime.ascend.stand_in_om import StandInModel, read_om

DIMS_INPUT = "ascend_mbatch_shape_data"
MAX_DIMS = 128
REPEATED_INIT, NO_SUCH_DEVICE, NO_CONTEXT, NO_MEMORY = 100002, 107001, 107002, 207001
_DEVICE_SPACE = 1 << 44
_HANDLES = 1 << 60
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_DIRECTIONS = {_TO_DEVICE: ("host", "device"), _TO_HOST: ("device", "host"), _ON_DEVICE: ("device", "device")}


@dataclass
class Context:
    device: int
    thread: int


@dataclass
class Stream:
    context: Context
    queue: list[tuple[Callable[[], None], tuple[int, ...]]] = field(default_factory=list)
    """Queued work and the addresses that it uses."""


@dataclass
class Model:
    om: StandInModel
    path: Path
    context: Context
    stream: Stream | None = None
    """Stream that the model runs on."""


@dataclass
class DataBuffer:
    address: int
    size: int
    used: bool = False
    """True if queued work uses the buffer."""


@dataclass
class Dataset:
    buffers: list[int] = field(default_factory=list)
    dims: list[int] | None = None


@dataclass
class Desc:
    model: Model | None = None


class StandInAcl:
    """pyACL of one process on a machine with several devices."""

    def __init__(self, devices: int = 8, soc: str = "Ascend910B1", *, capacity: int = 1 << 34) -> None:
        self.devices, self.soc, self.capacity = devices, soc, capacity
        self.violations: list[str] = []
        self.trace: list[str] = []
        self.codes: dict[str, list[int | None]] = {}
        """Codes that the next calls of a name return without doing anything. None runs the call."""
        self.codes_of_done: dict[str, int] = {}
        """Codes that calls of a name return after doing their work. Only for calls that return just a code."""
        self._lock = threading.RLock()
        self._state = "new"
        self._set: dict[int, int] = {}
        """Number of sets minus resets per device."""
        self._thread_device: dict[int, int] = {}
        self._current: dict[int, Context] = {}
        self._objects: dict[int, Any] = {}
        self._models: dict[int, Model] = {}
        self._memory = HostBlocks(self.violations)
        """Device memory by address. It belongs to a context."""
        self._next = dict.fromkeys(range(devices), 0)
        self._handles = count(_HANDLES, 64)
        self.rt, self.mdl = SimpleNamespace(), SimpleNamespace()
        for name in dir(self):
            group, _, call = name.partition("__")
            if group in ("rt", "mdl") and call:
                setattr(getattr(self, group), call, self._guarded(f"{group}.{call}", getattr(self, name)))
            if group == "top" and call:
                setattr(self, call, self._guarded(call, getattr(self, name)))

    # -- process

    def top__init(self) -> int:
        if self._state == "ready":
            return REPEATED_INIT
        self._require(self._state == "new", "init after finalize")
        self._state = "ready"
        return 0

    def top__finalize(self) -> int:
        left = [
            *(type(each).__name__ for each in self._objects.values()),
            *(f"model {number}" for number in self._models),
            *map(hex, self._memory),
            *(f"device {device}" for device, count in self._set.items() if count),
        ]
        self._require(not left, f"left at finalize: {left}")
        self._state = "finalized"
        return 0

    def rt__get_soc_name(self) -> str:
        return self.soc

    # -- devices, contexts, streams

    def rt__set_device(self, device: int) -> int:
        if device not in range(self.devices):
            return NO_SUCH_DEVICE
        self._set[device] = self._set.get(device, 0) + 1
        self._thread_device[threading.get_ident()] = device
        return 0

    def rt__reset_device(self, device: int) -> int:
        self._require(self._set.get(device, 0) > 0, f"reset of device {device}, which was not set")
        self._require(self._context() is None, f"reset of device {device} before the thread's context is destroyed")
        self._set[device] -= 1
        if not self._set[device]:
            left = [each for each in self._all(Context) if each.device == device]
            self._require(not left, f"the last reset of device {device}, which has contexts")
        return 0

    def rt__create_context(self, device: int) -> tuple[int, int]:
        self._require(bool(self._set.get(device)), f"a context on device {device}, which was not set")
        thread = threading.get_ident()
        self._require(thread not in self._current, "a second context on one thread")
        context = Context(device, thread)
        self._current[thread] = context
        return self._new(context), 0

    def rt__destroy_context(self, handle: int) -> int:
        context = self._get(handle, Context)
        self._require(context.thread == threading.get_ident(), "a context destroyed by another thread")
        left = [hex(address) for address, each in self._memory.items() if each.owner is context]
        left += ["a stream" for each in self._all(Stream) if each.context is context]
        left += [f"model {number}" for number, each in self._models.items() if each.context is context]
        self._require(not left, f"a context destroyed with {left} in use")
        del self._objects[handle], self._current[context.thread]
        return 0

    def rt__create_stream(self) -> tuple[int, int]:
        return self._new(Stream(self._own_context())), 0

    def rt__destroy_stream(self, handle: int) -> int:
        stream = self._own_stream(handle)
        self._require(not stream.queue, "a stream with queued work destroyed")
        del self._objects[handle]
        return 0

    def rt__synchronize_stream(self, handle: int) -> int:
        stream = self._own_stream(handle)
        queue, stream.queue = stream.queue, []
        for work, _ in queue:
            work()
        return 0

    # -- memory

    def rt__malloc(self, size: int, policy: int) -> tuple[int, int]:
        context = self._context()
        if context is None:  # provoked by tools/vendors/record_ascend.py
            return 0, NO_CONTEXT
        self._require(size > 0 and policy in range(3), f"{size} bytes of policy {policy}")
        if (
            self._memory.total(lambda owner: owner is not None and owner.device == context.device) + size
            > self.capacity
        ):
            return 0, NO_MEMORY
        address = (context.device + 1) * _DEVICE_SPACE + self._next[context.device]
        self._next[context.device] += -(-size // 512) * 512 + 512
        self._memory.add(address, size, context)
        return address, 0

    def rt__free(self, address: int) -> int:
        return self._free(address, "device")

    def rt__malloc_host(self, size: int) -> tuple[int, int]:
        self._own_context()
        return self._memory.add_real(size, 64, None), 0

    def rt__free_host(self, address: int) -> int:
        return self._free(address, "host")

    def rt__memcpy_async(self, target: int, capacity: int, source: int, size: int, kind: int, handle: int) -> int:
        stream = self._own_stream(handle)
        self._require(
            kind in _DIRECTIONS and 0 < size <= capacity, f"a copy of kind {kind}, {size} bytes into {capacity}"
        )
        self._require(not target % 64 and not source % 64, "a copy that is not aligned")
        blocks = [self._memory.holding(source, size), self._memory.holding(target, capacity)]
        where = tuple("host" if block.owner is None else "device" for block in blocks)
        self._require(where == _DIRECTIONS[kind], f"a copy of kind {kind} from {where[0]} to {where[1]}")
        owners = {block.owner.device for block in blocks if block.owner is not None}
        self._require(owners == {stream.context.device}, "a copy of another device's memory")
        stream.queue.append((lambda: self._memory.copy_bytes(target, source, size), (target, source)))
        return 0

    def rt__memset_async(self, address: int, capacity: int, value: int, size: int, handle: int) -> int:
        stream = self._own_stream(handle)
        self._require(
            0 < size <= capacity and self._device_of(address, capacity) == stream.context.device,
            "memory of another device set",
        )
        stream.queue.append((lambda: self._memory.view(address, size).fill(value), (address,)))
        return 0

    # -- models

    def mdl__load_from_file(self, path: str) -> tuple[int, int]:
        context = self._own_context()
        om = read_om(Path(path))
        self._require(om.soc_version == self.soc, f"an OM for {om.soc_version} on {self.soc}")
        number = max(self._models, default=0) + 1
        self._models[number] = Model(om, Path(path), context)
        return number, 0

    def mdl__unload(self, number: int) -> int:
        model = self._models[number]
        self._require(model.context is self._context(), "a model unloaded in another context")
        self._require(model.stream is None, "a model unloaded while it runs")
        self._require(all(each.model is not model for each in self._all(Desc)), "a model unloaded before its Desc")
        del self._models[number]
        return 0

    def mdl__create_desc(self) -> int:
        return self._new(Desc())

    def mdl__destroy_desc(self, handle: int) -> int:
        self._get(handle, Desc)
        del self._objects[handle]
        return 0

    def mdl__get_desc(self, handle: int, number: int) -> int:
        self._get(handle, Desc).model = self._models[number]
        return 0

    def mdl__get_num_inputs(self, handle: int) -> int:
        om = self._om(handle)
        return len(om.inputs) + bool(om.buckets)

    def mdl__get_num_outputs(self, handle: int) -> int:
        return len(self._om(handle).outputs)

    def mdl__get_input_index_by_name(self, handle: int, name: str) -> tuple[int, int]:
        om = self._om(handle)
        names = [*(each.name for each in om.inputs), *([DIMS_INPUT] if om.buckets else [])]
        return names.index(name), 0

    def mdl__get_input_size_by_index(self, handle: int, index: int) -> int:
        om = self._om(handle)
        if index == len(om.inputs) and om.buckets:
            return 8 * len(om.buckets[0])
        return max(sizes[0][index] for sizes in (self._sizes(om, dims) for dims in _all_dims(om)))

    def mdl__get_output_size_by_index(self, handle: int, index: int) -> int:
        om = self._om(handle)
        return max(sizes[1][index] for sizes in (self._sizes(om, dims) for dims in _all_dims(om)))

    def mdl__get_input_dynamic_gear_count(self, handle: int, index: int) -> tuple[int, int]:
        self._require(index == -1, "dims profiles of one input")
        return len(self._om(handle).buckets), 0

    def mdl__get_input_dynamic_dims(self, handle: int, index: int, count: int) -> tuple[list[dict[str, Any]], int]:
        om = self._om(handle)
        self._require((index, count) == (-1, len(om.buckets)), "a wrong number of dims profiles")
        return [{"name": "", "dimCount": len(dims), "dims": list(dims)} for dims in _all_dims(om)], 0

    def mdl__set_input_dynamic_dims(self, number: int, handle: int, index: int, dims: dict[str, Any]) -> int:
        model, dataset = self._models[number], self._get(handle, Dataset)
        om = model.om
        self._require(set(dims) == {"name", "dimCount", "dims"}, f"dims with the keys {sorted(dims)}")
        self._require(len(dims["dims"]) == dims["dimCount"] <= MAX_DIMS, "dims with a wrong count")
        self._require(bool(om.buckets) and dims["dims"] in _all_dims(om), f"unsupported dims: {dims['dims']}")
        self._require(index == len(om.inputs) < len(dataset.buffers), "dims in another input")
        buffer = self._get(dataset.buffers[index], DataBuffer)
        self._require(buffer.size >= 8 * len(om.buckets[0]), "too little memory for dims")
        self._require(self._device_of(buffer.address, buffer.size) == model.context.device, "dims on another device")
        self._require(not buffer.used, "the dims of a forward changed before it ran")
        dataset.dims = list(dims["dims"])
        return 0

    def mdl__create_dataset(self) -> int:
        return self._new(Dataset())

    def mdl__destroy_dataset(self, handle: int) -> int:
        self._get(handle, Dataset)
        del self._objects[handle]
        return 0

    def mdl__add_dataset_buffer(self, handle: int, buffer: int) -> tuple[int, int]:
        self._get(buffer, DataBuffer)
        self._get(handle, Dataset).buffers.append(buffer)
        return handle, 0

    def mdl__execute_async(self, number: int, inputs: int, outputs: int, handle: int) -> int:
        model, stream = self._models[number], self._own_stream(handle)
        self._require(model.context is stream.context, "a model executed in another context")
        self._require(model.stream in (None, stream), "one model on two streams")
        om, dataset = model.om, self._get(inputs, Dataset)
        input_buffers = [self._get(each, DataBuffer) for each in dataset.buffers]
        output_buffers = [self._get(each, DataBuffer) for each in self._get(outputs, Dataset).buffers]
        counts = len(om.inputs) + bool(om.buckets), len(om.outputs)
        self._require(
            (len(input_buffers), len(output_buffers)) == counts, "inputs or outputs that differ from the model's"
        )
        self._require(bool(dataset.dims or not om.buckets), "a forward without dims")
        dims = dataset.dims or _all_dims(om)[0]
        needed = [size for sizes in self._sizes(om, dims) for size in sizes]
        places = []
        for buffer, size in zip((*input_buffers[: len(om.inputs)], *output_buffers), needed, strict=True):
            self._require(size <= buffer.size, f"a buffer of {buffer.size} bytes for {size}")
            self._require(bool(om.buckets) or size == buffer.size, f"{buffer.size} bytes for {size} of a fixed shape")
            device = self._device_of(buffer.address, buffer.size)
            self._require(device == stream.context.device, "a buffer on another device")
            self._require(buffer.address % 64 == 0, "a buffer that is not aligned")
            places.append((buffer.address, size))
        model.stream = stream
        for buffer in (*input_buffers, *output_buffers):
            buffer.used = True

        def run() -> None:
            self._run(model, dims, places)
            model.stream = None
            for buffer in (*input_buffers, *output_buffers):
                buffer.used = False

        stream.queue.append((run, tuple(address for address, _ in places)))
        return 0

    def top__create_data_buffer(self, address: int, size: int) -> int:
        return self._new(DataBuffer(address, size))

    def top__update_data_buffer(self, handle: int, address: int, size: int) -> int:
        buffer = self._get(handle, DataBuffer)
        self._require(not buffer.used, "a buffer changed before the forward that uses it ran")
        buffer.address, buffer.size = address, size
        return 0

    def top__destroy_data_buffer(self, handle: int) -> int:
        self._require(not self._get(handle, DataBuffer).used, "a buffer destroyed before the forward that uses it ran")
        del self._objects[handle]
        return 0

    # -- internals

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a call: record it, return a planned code, and reject calls before init."""

        def call(*arguments: Any) -> Any:
            with self._lock:
                self.trace.append(f"{name}({', '.join(map(str, arguments))})")
                if self._state != "ready" and name not in ("init", "rt.get_soc_name"):
                    self._require(False, f"{name} before init, or after finalize")
                planned = self.codes.get(name, [])
                code = planned.pop(0) if planned else None
                if code is not None:
                    return code if _is_code(function) else (0, code)
                done = function(*arguments)
                return self.codes_of_done.get(name, done) if _is_code(function) else done

        return call

    def _require(self, condition: bool, what: str) -> None:
        self._memory.require(condition, what)

    def _own_context(self) -> Context:
        """Return the context of the calling thread."""
        context = self._context()
        self._require(context is not None, "a call on a thread without a context")
        assert context is not None
        return context

    def _own_stream(self, handle: int) -> Stream:
        stream: Stream = self._get(handle, Stream)
        self._require(stream.context is self._context(), "a stream of another thread's context")
        return stream

    def _context(self) -> Context | None:
        return self._current.get(threading.get_ident())

    def _all(self, kind: type[Any]) -> list[Any]:
        return [each for each in self._objects.values() if isinstance(each, kind)]

    def _new(self, thing: Any) -> int:
        handle = next(self._handles)
        self._objects[handle] = thing
        return handle

    def _get(self, handle: int, kind: type[Any]) -> Any:
        found = self._objects.get(handle)
        self._require(isinstance(found, kind), f"{handle} is not a {kind.__name__}")
        return found

    def _om(self, handle: int) -> StandInModel:
        model = self._get(handle, Desc).model
        self._require(model is not None, "a description without a model")
        return model.om

    def _device_of(self, address: int, size: int) -> int | None:
        context = self._memory.holding(address, size).owner
        return None if context is None else context.device

    def _free(self, address: int, where: str) -> int:
        block = self._memory.get(address)
        self._require(
            block is not None and (block.owner is None) == (where == "host"),
            f"free of memory that is not {where} memory",
        )
        queued = (each for stream in self._all(Stream) for _, uses in stream.queue for each in uses)
        self._memory.remove(address, queued)
        return 0

    def _sizes(self, om: StandInModel, dims: list[int]) -> tuple[list[int], list[int]]:
        """Return the bytes of inputs and outputs for all dims of all inputs."""
        shapes = _shapes(om, dims)
        inputs = [int(np.prod(shape)) * _itemsize(each.dtype) for shape, each in zip(shapes, om.inputs, strict=True)]
        by_name = {each.name: shape for each, shape in zip(om.inputs, shapes, strict=True)}
        rows, output_buffers = by_name["input_ids"][1], by_name["logits_index"][0]
        _, heads_of_all, _, size = by_name["past_key_values"]
        numbers = {"topk_ids": 8 * output_buffers, "topk_logprobs": 8 * output_buffers, "entropy": output_buffers}
        outputs = []
        for each in om.outputs:
            if each.name.startswith("window_key_values"):
                count = heads_of_all * rows * size
            elif each.name == "logits":
                count = output_buffers * _vocabulary(om)
            else:
                count = numbers[each.name]
            outputs.append(count * _itemsize(each.dtype))
        return inputs, outputs

    def _run(self, model: Model, dims: list[int], places: list[tuple[int, int]]) -> None:
        om = model.om
        inputs = {}
        for each, shape, (address, size) in zip(om.inputs, _shapes(om, dims), places, strict=False):
            inputs[each.name] = self._memory.view(address, size).view(each.dtype).reshape(shape)
            self._require(bool(np.isfinite(inputs[each.name]).all()), f"{each.name} was not written")
        names = [each.name for each in om.outputs]
        arrays = _session_of_om(model.path).run(names, inputs)
        for each, array, (address, size) in zip(om.outputs, arrays, places[len(om.inputs) :], strict=True):
            self._require((array.nbytes, array.dtype.name) == (size, each.dtype), f"{each.name} is {array.shape}")
            self._memory.view(address, size)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _is_code(function: Callable[..., Any]) -> bool:
    return function.__annotations__["return"] is int


def _all_dims(om: StandInModel) -> list[list[int]]:
    """Return all dims of all inputs, per shape bucket or for the only shape."""
    found = []
    for bucket in om.buckets or [[]]:
        numbers = iter(bucket)
        found.append([next(numbers) if dim == -1 else dim for each in om.inputs for dim in each.dims])
    return found


def _shapes(om: StandInModel, dims: list[int]) -> list[tuple[int, ...]]:
    numbers = iter(dims)
    return [tuple(next(numbers) for _ in each.dims) for each in om.inputs]


def _itemsize(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


@cache
def _vocabulary_of_graph(graph: bytes) -> int:
    import onnx

    outputs = {value.name: value for value in onnx.load_model_from_string(graph).graph.output}
    return int(outputs["logits"].type.tensor_type.shape.dim[-1].dim_value)


def _vocabulary(om: StandInModel) -> int:
    return _vocabulary_of_graph(om.graph)


def _session_of_om(path: Path) -> ort.InferenceSession:
    return _opened_session(path, path.stat().st_mtime_ns)


@cache
def _opened_session(path: Path, changed: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    return ort.InferenceSession(read_om(path).graph, options, providers=["CPUExecutionProvider"])
