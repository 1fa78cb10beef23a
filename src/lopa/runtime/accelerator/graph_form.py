"""Input and output form of an engine's graph: the contract's shapes, or the shapes of the portable dialect.

Both have the same names except for the prefix, and the same element order in all outputs except the new rows.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.accelerator.device_memory import Buffer, BufferSet
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import Bool, WindowBatch, past_names
from lopa.runtime.contract.portable_form import PAST, portable_inputs
from lopa.runtime.contract.rotary import RotaryAngles, position_inputs

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RowSteps:
    """Distances in rows between requests, branches and heads in an output of new rows."""

    request: int
    branch: int
    head: int


class GraphForm(Protocol):
    """Interface of ContractForm and PortableForm."""

    def inputs(self, batch: WindowBatch, prefix_mask: Bool) -> dict[str, Array]:
        """Return all inputs except the prefix rows by name, C-contiguous. `prefix_mask` is [R, P]."""

    def past(self, arrays: BufferSet) -> dict[str, Buffer]:
        """Return the prefix rows by name. `arrays` are dtype [R, Hkv, P, D] each, in the order of
        contract.past_names.
        """

    def row_steps(self, bucket: ShapeBucket, kv_heads: int) -> RowSteps:
        """Return the distances of the new rows after a forward in the shape of `bucket`."""


class ContractForm:
    """Form of the contract, with new rows [R, B, Hkv, W, D]."""

    def __init__(self, rotary: RotaryAngles | None = None) -> None:
        """Create the form of a graph that takes the cosines and sines of `rotary`, or positions if it is None."""
        self._rotary = rotary

    def inputs(self, batch: WindowBatch, prefix_mask: Bool) -> dict[str, Array]:
        """Return all inputs except the prefix rows."""
        arrays: dict[str, Array] = {
            contract.INPUT_IDS: batch.input_ids,
            **position_inputs(batch.position_ids, self._rotary),
            contract.WINDOW_MASK: batch.window_mask,
            contract.PREFIX_MASK: prefix_mask,
            contract.LOGITS_INDEX: batch.logits_index,
            contract.TEMPERATURE: batch.temperature,
            **({} if batch.canvas is None else batch.canvas.arrays()),
        }
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def past(self, arrays: BufferSet) -> dict[str, Buffer]:
        """Return one input per prefix array."""
        return dict(zip(past_names(len(arrays.buffers) // 2), arrays.buffers, strict=True))

    def row_steps(self, bucket: ShapeBucket, kv_heads: int) -> RowSteps:
        """Return the distances in [R, B, Hkv, W, D]."""
        return RowSteps(bucket.branches * kv_heads * bucket.window, kv_heads * bucket.window, bucket.window)


class PortableForm:
    """Form of the portable dialect, with new rows [R, Hkv, B x W, D]."""

    def __init__(self, rotary: RotaryAngles | None = None) -> None:
        """Create the form of a graph that takes the cosines and sines of `rotary`, or positions if it is None."""
        self._rotary = rotary

    def inputs(self, batch: WindowBatch, prefix_mask: Bool) -> dict[str, Array]:
        """Return all inputs except the prefix rows."""
        return portable_inputs(batch, prefix_mask, self._rotary)

    def past(self, arrays: BufferSet) -> dict[str, Buffer]:
        """Return the prefix as one input. Raises ValueError like BufferSet.whole."""
        return {PAST: arrays.whole}

    def row_steps(self, bucket: ShapeBucket, kv_heads: int) -> RowSteps:
        """Return the distances in [R, Hkv, B x W, D]."""
        rows = bucket.branches * bucket.window
        return RowSteps(kv_heads * rows, bucket.window, rows)
