"""What an engine's graph takes and gives for one forward: the contract's own shapes, or those of the portable dialect.

Both have the same names but for the prefix, and the same order of numbers in every output but the new rows. Knows
arrays only.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.accelerator.memory import Buffer, BufferSet
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import Bool, WindowBatch, past_names
from lopa.runtime.contract.portable_form import PAST, portable_inputs

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class RowSteps:
    """How far it is, counted in rows, from one request, branch or head to the next in an output of new rows."""

    request: int
    branch: int
    head: int


class GraphForm(Protocol):
    """One of the two."""

    def inputs(self, batch: WindowBatch, prefix_mask: Bool) -> dict[str, Array]:
        """All inputs but the prefix rows, C-contiguous, by name; `prefix_mask` [R, P]."""

    def past(self, arrays: BufferSet) -> dict[str, Buffer]:
        """The prefix rows by name; `arrays` each dtype [R, Hkv, P, D], in the order of contract.past_names."""

    def row_steps(self, bucket: ShapeBucket, kv_heads: int) -> RowSteps:
        """Where the new rows lie after a forward in the shape of `bucket`."""


class ContractForm:
    """The contract's own: new rows [R, B, Hkv, W, D]."""

    def inputs(self, batch: WindowBatch, prefix_mask: Bool) -> dict[str, Array]:
        """GraphForm.inputs."""
        arrays: dict[str, Array] = {
            contract.INPUT_IDS: batch.input_ids,
            contract.POSITION_IDS: batch.position_ids,
            contract.WINDOW_MASK: batch.window_mask,
            contract.PREFIX_MASK: prefix_mask,
            contract.LOGITS_INDEX: batch.logits_index,
            contract.TEMPERATURE: batch.temperature,
        }
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def past(self, arrays: BufferSet) -> dict[str, Buffer]:
        """GraphForm.past: an input for each array."""
        return dict(zip(past_names(len(arrays.buffers) // 2), arrays.buffers, strict=True))

    def row_steps(self, bucket: ShapeBucket, kv_heads: int) -> RowSteps:
        """GraphForm.row_steps."""
        return RowSteps(bucket.branches * kv_heads * bucket.window, kv_heads * bucket.window, bucket.window)


class PortableForm:
    """The portable dialect's: new rows [R, Hkv, B x W, D]."""

    def inputs(self, batch: WindowBatch, prefix_mask: Bool) -> dict[str, Array]:
        """GraphForm.inputs."""
        return portable_inputs(batch, prefix_mask)

    def past(self, arrays: BufferSet) -> dict[str, Buffer]:
        """GraphForm.past: one input. Raises ValueError as BufferSet.whole does."""
        return {PAST: arrays.whole}

    def row_steps(self, bucket: ShapeBucket, kv_heads: int) -> RowSteps:
        """GraphForm.row_steps."""
        rows = bucket.branches * bucket.window
        return RowSteps(kv_heads * rows, bucket.window, rows)
