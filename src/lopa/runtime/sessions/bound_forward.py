"""One forward through any engine whose inputs and outputs are bound to arrays in host memory.

This module allocates the arrays of a forward and reuses their memory. The engine is passed in as a Binding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.bundle.graph_signature import arrays_of_values, inputs_of_graph, outputs_of_graph
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Rows, Statistics, WindowBatch, statistics_of_arrays
from lopa.runtime.contract.model_part import HIDDEN, ModelPart
from lopa.runtime.contract.rotary import position_inputs
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.sessions.prefix_cache import Prefix

Array = npt.NDArray[Any]
Handle = Any
"""Object by which an engine refers to the memory of an array."""

_MAX_BUFFERS = 64
"""Maximum number of cached sets of views. Creating views costs more than binding them, and a decode uses few sizes."""


class Binding(Protocol):
    """An opened graph of an engine, with the arrays bound to its inputs and outputs."""

    def handle_of(self, array: Array) -> Handle:
        """Return the engine's handle of the array's memory, without a copy. The caller keeps the array while it is
        bound.
        """

    def bind_inputs(self, handles: Sequence[tuple[str, Handle]]) -> None:
        """Bind inputs for the next runs. Other inputs stay bound."""

    def bind_outputs(self, handles: Sequence[tuple[str, Handle]]) -> None:
        """Bind outputs for the next runs."""

    def unbind_inputs(self) -> None:
        """Drop all references to bound inputs."""

    def run(self) -> None:
        """Run one forward. Raises any exception of the engine."""

    def close(self) -> None:
        """Free the graph."""


class BoundForward:
    """A forward whose inputs and outputs are bound to reused memory."""

    def __init__(self, binding: Binding, manifest: Manifest, part: ModelPart) -> None:
        """Create a forward over `binding`, the standard graph of `part`."""
        self._binding = binding
        self._part = part
        self._rotary = manifest.rotary
        prefix = {contract.PREFIX_MASK, *part.past_names}
        self._inputs = {name: form for name, form in inputs_of_graph(manifest, part).items() if name not in prefix}
        self._outputs = outputs_of_graph(manifest, part)
        self._memory: dict[str, Array] = {}
        """One flat array per input and output except the prefix, as large as the largest window so far."""
        self._buffers: dict[Sizes, _Buffers] = {}
        """Views of `_memory` by sizes, since it last grew. Only the views of the last run hold its results."""
        self._bound_window: Sizes | None = None
        self._bound_prefix: Prefix | None = None
        self._held_prefix: Prefix | None = None
        """Prefix whose memory the engine may refer to."""

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run one forward for all branches of all requests. The next run overwrites the returned rows."""
        arrays = self.run_part(batch, None, prefix)
        return self.statistics_from_outputs(arrays), tuple(arrays[name] for name in self._part.window_names)

    def run_part(self, batch: WindowBatch, hidden: Array | None, prefix: Prefix) -> dict[str, Array]:
        """Return all outputs by name, in memory that the next run overwrites.

        `prefix` holds the arrays of this part's layers. `hidden` has the form of HIDDEN, or is None for the first part.
        """
        requests, branches, window = batch.input_ids.shape
        # The prefix is bound separately, and only the last part samples positions.
        wanted = batch.logits_index.shape[2] if self._part.is_last else 0
        arrays = self._bound_arrays(Sizes(requests, branches, window, prefix=0, wanted=wanted))
        if prefix is not self._bound_prefix:
            self._bind_prefix(prefix)
        if hidden is None:
            arrays[contract.INPUT_IDS][...] = batch.input_ids
        else:
            arrays[HIDDEN][...] = hidden
        for name, values in position_inputs(batch.position_ids, self._rotary).items():
            arrays[name][...] = values
        arrays[contract.WINDOW_MASK][...] = batch.window_mask
        if self._part.is_last:
            arrays[contract.LOGITS_INDEX][...] = batch.logits_index
            arrays[contract.TEMPERATURE][...] = batch.temperature
        for name, values in {} if batch.canvas is None else batch.canvas.arrays().items():
            arrays[name][...] = values
        self._binding.run()
        return arrays

    def statistics_from_outputs(self, arrays: dict[str, Array]) -> Statistics:
        """Return copies of the statistics in the outputs of `run_part` on a last part."""
        return statistics_of_arrays(arrays).mapped(np.copy)

    def forget_prefix(self) -> None:
        """Unbind all inputs, so that a released cache is freed."""
        self._bound_window = self._bound_prefix = None  # first, since a signal may end this call
        self._binding.unbind_inputs()
        self._held_prefix = None

    def close(self) -> None:
        """Free the graph, the bindings and their memory."""
        self._binding.close()
        self._memory.clear()
        self._buffers.clear()
        self._bound_prefix = self._held_prefix = None

    def _bound_arrays(self, sizes: Sizes) -> dict[str, Array]:
        """Return the bound arrays of these sizes by contract name: all inputs and outputs except the prefix."""
        if sizes not in self._buffers:
            self._add_buffers(sizes)
        buffers = self._buffers[sizes]
        if sizes != self._bound_window:
            self._bound_window = None  # stays None if binding fails halfway
            self._binding.bind_inputs(buffers.inputs)
            self._binding.bind_outputs(buffers.outputs)
            self._bound_window = sizes
        return buffers.arrays

    def _add_buffers(self, sizes: Sizes) -> None:
        self._bound_window = None  # the views of the bound window may be dropped from `_buffers`
        inputs, outputs = arrays_of_values(self._inputs, sizes), arrays_of_values(self._outputs, sizes)
        both = inputs | outputs
        if len(self._buffers) == _MAX_BUFFERS:
            self._buffers.clear()
        for name, form in both.items():
            size = math.prod(form.shape)
            if name not in self._memory or self._memory[name].size < size:
                self._memory[name] = np.empty(size, form.dtype)
                self._buffers.clear()  # old views would keep the smaller memory allocated
        arrays = {name: self._memory[name][: math.prod(form.shape)].reshape(form.shape) for name, form in both.items()}
        handles = {name: self._binding.handle_of(array) for name, array in arrays.items()}
        self._buffers[sizes] = _Buffers(
            arrays, [(name, handles[name]) for name in inputs], [(name, handles[name]) for name in outputs]
        )

    def _bind_prefix(self, prefix: Prefix) -> None:
        names = [contract.PREFIX_MASK, *self._part.past_names]
        arrays = (prefix.mask, *prefix.arrays)
        handles = [(name, self._binding.handle_of(array)) for name, array in zip(names, arrays, strict=True)]
        self._bound_prefix = None  # stays None if binding fails halfway
        self._held_prefix = prefix  # before binding, because an engine may hold only the address
        self._binding.bind_inputs(handles)
        self._bound_prefix = prefix


@dataclass(frozen=True, eq=False)
class _Buffers:
    """Arrays bound for one window except the prefix, and the engine's handles of the same memory."""

    arrays: dict[str, Array]
    inputs: list[tuple[str, Handle]]
    outputs: list[tuple[str, Handle]]
