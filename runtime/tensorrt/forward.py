"""A TensorRT engine on one CUDA device: the AnyShapeForward protocol over a plan. Knows no request.

A context for each gear, with a CUDA graph (gear.py); one more for long prompts, whose shape is set before each
forward. All of them share the weights, and the memory between layers, since they run one after the other on one stream.
"""

from collections.abc import Mapping
from functools import partial
from types import ModuleType

from lopa.runtime.accelerator.arrays import GraphArrays
from lopa.runtime.accelerator.graph_form import ContractForm
from lopa.runtime.accelerator.memory import Buffer, BufferSet
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import Gear
from lopa.runtime.contract import Sizes
from lopa.runtime.cuda.graphs import CudaGraphs
from lopa.runtime.cuda.memory import CudaMemory
from lopa.runtime.tensorrt.gear import GearRunner
from lopa.runtime.tensorrt.manifest import StoredTensorRTEngine
from lopa.runtime.tensorrt.plan import ProfileContext, TensorRTPlan
from lopa.runtime.tensorrt.profiles import ProfileTable


class TensorRTForward:
    """The AnyShapeForward protocol, for shapes that `gear_for` gives."""

    def __init__(
        self,
        trt: ModuleType,
        found: StoredTensorRTEngine,
        bundle: Bundle,
        memory: CudaMemory,
        graphs: CudaGraphs,
    ) -> None:
        """Open the plan on the calling thread's device, on the stream of its `memory`, of which `graphs` are too.

        Raises BadInputError as TensorRTPlan does, EngineFailedError.
        """
        engine = found.engine
        self.memory = memory
        self.form = ContractForm()
        self.gears = list(engine.gears)
        self._arrays = GraphArrays(bundle.manifest)
        self.sizes = self._arrays.bytes_but_prefix(*engine.gears)
        self._prefill_sizes = self._arrays.bytes_but_prefix(engine.prefill.most)
        self._table = ProfileTable(engine.gears, engine.prefill)
        self._plan = TensorRTPlan(trt, found, bundle)
        self._scratch = BufferSet(memory, [max(1, self._plan.scratch_size)])
        self._runners: dict[Gear, GearRunner] = {}
        self._prefill: ProfileContext | None = None
        try:
            for number, gear in enumerate(engine.gears):
                self._runners[gear] = GearRunner(partial(self._context_of_gear, number, gear), graphs)
            self._prefill = self._plan.new_context(len(engine.gears), memory.stream, self._scratch.buffers[0])
        except BaseException:
            self.close()
            raise

    def gear_for(self, sizes: Sizes) -> Gear:
        """The shape in which a forward of `sizes` runs; raises as ProfileTable.profile_for."""
        return self._table.profile_for(sizes)[1]

    def sizes_of(self, gear: Gear) -> Mapping[str, int]:  # noqa: ARG002
        """AnyShapeForward.sizes_of: the largest, so that memory is allocated once for all long prompts."""
        return self._prefill_sizes

    def enqueue(self, gear: Gear, buffers: Mapping[str, Buffer]) -> None:
        """DeviceForward.enqueue, of a gear or of a shape that `gear_for` gave."""
        addresses = {name: buffer.address for name, buffer in buffers.items()}
        runner = self._runners.get(gear)
        if runner is not None:
            runner.enqueue(addresses)
            return
        assert self._prefill is not None  # nothing runs on a closed engine
        self._prefill.set_shapes(self._arrays.input_shapes(gear))
        self._prefill.set_addresses(addresses)
        self._prefill.enqueue()

    def close(self) -> None:
        """DeviceForward.close: graphs, contexts, plan, in this order."""
        try:
            for runner in self._runners.values():
                runner.close()
        finally:
            self._runners.clear()
            self._prefill = None
            self._plan.close()
            self._scratch.free()

    def _context_of_gear(self, profile: int, gear: Gear) -> ProfileContext:
        context = self._plan.new_context(profile, self.memory.stream, self._scratch.buffers[0])
        context.set_shapes(self._arrays.input_shapes(gear))
        return context
