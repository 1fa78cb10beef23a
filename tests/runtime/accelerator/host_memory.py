"""A stand-in for device memory: strict host memory, with an ONNX Runtime engine on it.

Queued work runs only in `synchronize`, memory starts with garbage, and every access is checked, also that it stays
within this memory.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnxruntime as ort
from tests.runtime.accelerator.host_blocks import HostBlocks

from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.accelerator.device_memory import ALIGNMENT, Array, Buffer
from lopa.runtime.accelerator.device_session import DeviceSession
from lopa.runtime.accelerator.graph_form import ContractForm, GraphForm, PortableForm
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract.portable_form import PAST
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

_APART = 1 << 44
"""Distance between the address ranges of different memories."""


class HostMemory:
    """DeviceMemory on the host."""

    packs_arrays = True

    def __init__(self, number: int = 0) -> None:
        self.blocks = HostBlocks()
        self.sums = {"uploaded": 0, "downloaded": 0, "copied": 0}
        """Bytes copied, by kind."""
        self.peak = 0
        """Maximum number of bytes allocated at once."""
        self.closed = False
        self._queue: list[Callable[[], None]] = []
        self._next = (number + 1) * _APART
        self._rng = np.random.default_rng(number)

    def allocate(self, size: int) -> int:
        assert size > 0
        address, self._next = self._next, self._next + -(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        self.blocks.add(address, size, self)
        self.peak = max(self.peak, self.blocks.total(lambda _: True))
        return address

    def free(self, address: int) -> None:
        assert not self._queue, "freed while the queue may use it"
        del self.blocks[address]

    def upload(self, target: int, source: Array) -> None:
        self.sums["uploaded"] += source.nbytes
        data = np.frombuffer(source.tobytes(), np.uint8)
        self._queue.append(lambda: _write(self.view(target, data.size), data))

    def download(self, target: Array, source: int) -> None:
        assert target.flags.c_contiguous
        self.sums["downloaded"] += target.nbytes
        target.reshape(-1).view(np.uint8)[:] = 0xFE
        self._queue.append(lambda: _write(target.reshape(-1).view(np.uint8), self.view(source, target.nbytes)))

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        self.sums["copied"] += size * count
        for piece in range(count):
            to, start = target + piece * target_step, source + piece * source_step
            self._queue.append(partial(self._copy, to, start, size))

    def _copy(self, target: int, source: int, size: int) -> None:
        _write(self.view(target, size), self.view(source, size))

    def fill_zero(self, target: int, size: int) -> None:
        self._queue.append(lambda: self.view(target, size).fill(0))

    def synchronize(self) -> None:
        assert not self.closed
        queue, self._queue = self._queue, []
        for work in queue:
            work()

    def close(self) -> None:
        assert not self._queue
        self.closed = True
        self.blocks.clear()

    def enqueue(self, work: Callable[[], None]) -> None:
        self._queue.append(work)

    def view(self, address: int, size: int) -> Array:
        """Return a view of the bytes. Raises unless all of them are in one allocation."""
        return self.blocks.view(address, size)


class OnnxRuntimeDeviceForward:
    """DeviceForward on host memory: ONNX Runtime on a bundle's graph, in float32."""

    def __init__(self, bundle: Bundle, buckets: Sequence[ShapeBucket], memory: HostMemory) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(str(bundle.graph), options, providers=["CPUExecutionProvider"])
        self.portable = bundle.manifest.dialect == "portable"
        self.form: GraphForm = (PortableForm if self.portable else ContractForm)(bundle.manifest.rotary)
        self.memory, self.buckets = memory, buckets
        self._dimensions, self._arrays = bundle.manifest.dimensions, GraphArrays(bundle.manifest)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._past = [name for name in self._inputs if name.startswith(PAST)]
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._rng = np.random.default_rng(3)
        self.runs: list[ShapeBucket] = []
        self.closed = False
        shapes = [self._shapes(bucket) for bucket in buckets]
        self.sizes = {
            name: max(_bytes(*each[name]) for each in shapes)
            for name in (*self._inputs, *self._outputs)
            if name not in self._past
        }

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        assert set(buffers) == {*self._inputs, *self._outputs}
        self.runs.append(bucket)
        buffers = dict(buffers)
        self.memory.enqueue(lambda: self._run(bucket, buffers))

    def close(self) -> None:
        self.closed = True

    def _run(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        shapes = self._shapes(bucket)
        inputs = {}
        for name in self._inputs:
            shape, dtype = shapes[name]
            assert _bytes(shape, dtype) <= buffers[name].size
            inputs[name] = self.memory.view(buffers[name].address, _bytes(shape, dtype)).view(dtype).reshape(shape)
        self._with_garbage(inputs)
        for name, array in zip(self._outputs, self._session.run(self._outputs, inputs), strict=True):
            assert (array.shape, array.dtype) == shapes[name]
            assert array.nbytes <= buffers[name].size
            _write(self.memory.view(buffers[name].address, array.nbytes), np.ascontiguousarray(array))

    def _with_garbage(self, inputs: dict[str, Array]) -> None:
        """Check that uncommitted prefix rows are zero, and replace them with random values, which must have no
        effect.
        """
        mask = inputs["prefix_mask"].reshape(-1, inputs["prefix_mask"].shape[-1])[:, None, :, None]
        committed = mask == 0 if self.portable else mask
        for name in self._past:
            shape = inputs[name].shape
            past = inputs[name].reshape(-1, len(committed), self._dimensions.cache_heads, *shape[-2:])
            assert not np.where(committed, 0, past).any()
            past = np.where(committed, past, self._rng.standard_normal(past.shape, np.float32))
            inputs[name] = past.reshape(shape)

    def _shapes(self, bucket: ShapeBucket) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        arrays = self._arrays.inputs(bucket) | self._arrays.outputs(bucket)
        return {name: (each.shape, each.dtype) for name, each in arrays.items()}


def device_session(
    bundle: Bundle,
    buckets: Sequence[ShapeBucket],
    number: int = 0,
    *,
    fixed_addresses: bool = False,
) -> tuple[DeviceSession, OnnxRuntimeDeviceForward, HostMemory]:
    """Return a session on a new memory, with its engine and memory."""
    memory = HostMemory(number)
    engine = OnnxRuntimeDeviceForward(bundle, buckets, memory)
    shape = cache_shape_from_manifest(bundle.manifest)
    name = f"stand-in:{number}"
    sizes = bundle.manifest.dimensions
    session = DeviceSession(
        engine, name, shape, sizes.vocab_size, hidden_size=sizes.hidden_size, fixed_addresses=fixed_addresses
    )
    return session, engine, memory


def _bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _write(target: Array, source: Array) -> None:
    target[:] = source.reshape(-1).view(np.uint8)
