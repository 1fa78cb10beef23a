"""A TensorRT engine on one CUDA device, over a plan (AnyShapeForward protocol).

Each shape bucket has a context and a CUDA graph (bucket.py). Another context runs long prompts, with its shape set
before each forward. All contexts share weights and activation memory, because they run one after another on one stream.
"""

from collections.abc import Mapping
from functools import partial
from types import ModuleType

from lopa.runtime.accelerator.device_forward import GraphArrays
from lopa.runtime.accelerator.device_memory import Buffer, BufferSet
from lopa.runtime.accelerator.graph_form import ContractForm
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.cuda.graphs import CudaGraphs
from lopa.runtime.tensorrt.bucket import BucketRunner
from lopa.runtime.tensorrt.contexts import ContextMemory
from lopa.runtime.tensorrt.plan import ProfileContext, TensorRTPlan
from lopa.runtime.tensorrt.profiles import ProfileTable
from lopa.runtime.tensorrt.tensorrt_manifest import StoredTensorRTEngine, can_be_captured


class TensorRTForward:
    """Forward over a TensorRT engine, for shapes returned by `bucket_for`."""

    def __init__(
        self,
        trt: ModuleType,
        found: StoredTensorRTEngine,
        bundle: Bundle,
        device: CudaDevice,
        memory: CudaMemory,
        graphs: CudaGraphs,
    ) -> None:
        """Open the plan on `device`, the calling thread's device, on the stream of `memory` and `graphs`.

        Raises BadInputError like TensorRTPlan, and EngineFailedError.
        """
        engine = found.engine
        self.memory = memory
        self.form = ContractForm(bundle.manifest.rotary)
        self.buckets = list(engine.buckets)
        self._graphs = graphs
        self._can_be_captured = can_be_captured(engine.target, engine.flags)
        self._arrays = GraphArrays(bundle.manifest)
        self.sizes = self._arrays.bytes_without_prefix(*engine.buckets)
        self._prefill_sizes = self._arrays.bytes_without_prefix(engine.prefill.max)
        self._table = ProfileTable(engine.buckets, engine.prefill)
        self._context_memory = ContextMemory(memory.free_bytes, max(map(self._arrays.prefix_bytes, engine.buckets)))
        self._plan = TensorRTPlan(trt, found, bundle, device)
        self._scratch: BufferSet | None = None
        self._runners: dict[ShapeBucket, BucketRunner] = {}
        self._prefill: ProfileContext | None = None
        try:
            if self._plan.streams_weights:
                # Weights come last, because contexts must be created to be measured, and the weight budget cannot
                # change while a context exists.
                self._plan.stream_all_weights()
                self._open_contexts()
                needed = self._context_memory.needed + self._plan.scratch_size
                self._close_contexts()
                self._plan.reserve_memory(needed)
            self._open_contexts()
        except BaseException:
            self.close()
            raise

    def bucket_for(self, sizes: Sizes) -> ShapeBucket:
        """Return the shape in which a forward of `sizes` runs. Raises like ProfileTable.profile_for."""
        return self._table.profile_for(sizes)[1]

    def sizes_of(self, bucket: ShapeBucket) -> Mapping[str, int]:  # noqa: ARG002
        """Return the largest sizes, so that memory is allocated once for all long prompts."""
        return self._prefill_sizes

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """Enqueue a forward in a shape bucket or another shape from `bucket_for`."""
        addresses = {name: buffer.address for name, buffer in buffers.items()}
        runner = self._runners.get(bucket)
        if runner is not None:
            runner.enqueue(addresses)
            return
        assert self._prefill is not None  # DeviceSession does not call a closed forward
        self._prefill.set_shapes(self._arrays.input_shapes(bucket))
        self._prefill.set_addresses(addresses)
        self._prefill.enqueue()

    def close(self) -> None:
        """Free graphs, contexts and plan, in this order."""
        try:
            self._close_contexts()
        finally:
            self._plan.close()

    def _open_contexts(self) -> None:
        self._scratch = BufferSet(self.memory, [self._plan.scratch_size])
        for number, bucket in enumerate(self.buckets):
            self._runners[bucket] = BucketRunner(
                partial(self._new_bucket_context, number, bucket),
                partial(self._context_memory.has_room, number),
                self._graphs,
                can_be_captured=self._can_be_captured,
            )
        self._prefill = self._context(len(self.buckets), one_shape=False)

    def _close_contexts(self) -> None:
        try:
            for runner in self._runners.values():
                runner.close()
        finally:
            self._runners.clear()
            self._prefill = None
            scratch, self._scratch = self._scratch, None
            if scratch is not None:
                scratch.free()

    def _context(self, profile: int, *, one_shape: bool) -> ProfileContext:
        assert self._scratch is not None  # contexts are created only while the memory exists
        make = partial(
            self._plan.new_context, profile, self.memory.stream, self._scratch.buffers[0], one_shape=one_shape
        )
        return self._context_memory.measure(profile, make)

    def _new_bucket_context(self, profile: int, bucket: ShapeBucket) -> ProfileContext:
        context = self._context(profile, one_shape=True)
        context.set_shapes(self._arrays.input_shapes(bucket))
        return context
