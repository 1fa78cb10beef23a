"""One OM on one Ascend device, which is loaded, run with the caller's buffers and unloaded.

Use it on the thread and in the context that loaded it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lopa.runtime.accelerator.device_memory import Buffer
from lopa.runtime.ascend.acl_calls import AclCalls
from lopa.runtime.ascend.acl_memory import AclMemory
from lopa.runtime.errors import BadInputError

_DIMS_INPUT = "ascend_mbatch_shape_data"
"""Input that ATC adds to a dynamic model, with the dims to run."""
_ALL_INPUTS = -1


class AclModel:
    """The OM at `path`, with inputs of these names, and outputs of these names in this order.

    ATC may rename outputs, but keeps their order.
    """

    def __init__(
        self,
        acl: AclCalls,
        memory: AclMemory,
        path: Path,
        inputs: Sequence[str],
        outputs: Sequence[str],
        *,
        dynamic: bool,
    ) -> None:
        """Load the model.

        Raises AclError if it cannot be loaded, and BadInputError if its inputs or outputs differ.
        """
        self._acl = acl
        self._memory = memory
        self._path = path
        self._datasets: list[_Dataset] = []
        self._desc: Any = None
        self._model = acl("mdl.load_from_file", str(path))
        try:
            self._desc = acl("mdl.create_desc")
            acl("mdl.get_desc", self._desc, self._model)
            names = [*inputs, _DIMS_INPUT] if dynamic else list(inputs)
            self._check_counts(len(names), len(outputs))
            self._dims_index = acl("mdl.get_input_index_by_name", self._desc, _DIMS_INPUT) if dynamic else None
            index = {name: acl("mdl.get_input_index_by_name", self._desc, name) for name in inputs}
            self._inputs = sorted(inputs, key=index.__getitem__)
            self._outputs = list(outputs)
            # Bytes of every input and output, for the largest dims.
            self.sizes = {name: acl("mdl.get_input_size_by_index", self._desc, index[name]) for name in inputs}
            self.sizes |= {
                name: acl("mdl.get_output_size_by_index", self._desc, place) for place, name in enumerate(outputs)
            }
            self._dims_buffer = self._allocate_dims()
            self._datasets = [_Dataset(acl), _Dataset(acl)]
        except BaseException:
            self.close()
            raise

    @property
    def buckets(self) -> list[list[int]]:
        """All dims of all inputs in order, per shape bucket. The list is empty for a model with fixed shapes."""
        if self._dims_index is None:
            return []
        count = self._acl("mdl.get_input_dynamic_gear_count", self._desc, _ALL_INPUTS)
        found = self._acl("mdl.get_input_dynamic_dims", self._desc, _ALL_INPUTS, count)
        return [list(bucket["dims"])[: bucket["dimCount"]] for bucket in found]

    def enqueue(self, dims: Sequence[int], buffers: Mapping[str, Buffer]) -> None:
        """Enqueue a forward. `dims` are all dims of all inputs in order, one of `buckets`."""
        inputs, outputs = self._datasets
        bound = [self._limit(name, buffers[name]) for name in self._inputs]
        if self._dims_index is not None:
            bound.insert(self._dims_index, self._dims_buffer)
        inputs.bind(bound)
        outputs.bind([self._limit(name, buffers[name]) for name in self._outputs])
        if self._dims_index is not None:
            chosen = {"name": "", "dimCount": len(dims), "dims": list(dims)}
            self._acl("mdl.set_input_dynamic_dims", self._model, inputs.handle, self._dims_index, chosen)
        self._acl("mdl.execute_async", self._model, inputs.handle, outputs.handle, self._memory.stream)

    def close(self) -> None:
        """Free buffers, datasets and description, then unload the model, even if some calls fail. Raises the first
        failure.
        """
        steps = [step for dataset in self._datasets for step in dataset.close_steps()]
        steps += [("mdl.destroy_desc", self._desc)] if self._desc is not None else []
        self._acl.all([*steps, ("mdl.unload", self._model)])

    def _limit(self, name: str, buffer: Buffer) -> Buffer:
        """Return the buffer, limited to the model's size. pyACL warns about larger buffers for fixed shapes."""
        return Buffer(buffer.address, min(buffer.size, self.sizes[name]))

    def _check_counts(self, inputs: int, outputs: int) -> None:
        found = self._acl("mdl.get_num_inputs", self._desc), self._acl("mdl.get_num_outputs", self._desc)
        if found != (inputs, outputs):
            raise BadInputError(
                f"{self._path} has {found[0]} inputs and {found[1]} outputs",
                expected=f"{inputs} and {outputs}, as in engine.json",
                remedy="build the engine again: lopa-export ascend BUNDLE --soc-version SOC",
            )

    def _allocate_dims(self) -> Buffer:
        if self._dims_index is None:
            return Buffer(0, 0)
        size = self._acl("mdl.get_input_size_by_index", self._desc, self._dims_index)
        return Buffer(self._memory.allocate(size), size)


class _Dataset:
    """The inputs or outputs of a model."""

    def __init__(self, acl: AclCalls) -> None:
        self._acl = acl
        self.handle = acl("mdl.create_dataset")
        self._bound: list[Buffer] = []
        self._handles: list[Any] = []

    def bind(self, buffers: Sequence[Buffer]) -> None:
        """Bind these buffers. Their number must not change."""
        for place, buffer in enumerate(buffers):
            if place == len(self._bound):
                handle = self._acl("create_data_buffer", buffer.address, buffer.size)
                self._handles.append(handle)
                self._bound.append(buffer)
                self._acl("mdl.add_dataset_buffer", self.handle, handle)
            elif buffer != self._bound[place]:
                self._acl("update_data_buffer", self._handles[place], buffer.address, buffer.size)
                self._bound[place] = buffer

    def close_steps(self) -> list[tuple[Any, ...]]:
        """Return the calls that free the dataset without its memory."""
        return [*(("destroy_data_buffer", handle) for handle in self._handles), ("mdl.destroy_dataset", self.handle)]
