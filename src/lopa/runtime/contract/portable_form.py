"""Convert the contract's arrays to the form of a graph in the portable dialect, and back (docs/concepts/contract.md).

The windows of a request's branches are concatenated into S = B x W rows; no row attends to another branch. The M = R x
B x Q sampled positions form one list. Arrays have at most 4 axes, and masks are finite floats that are added to scores.
This module uses arrays only, no device and no file.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.contract import Bool, Float32, Rows, Statistics, WindowBatch, statistics_of_arrays
from lopa.runtime.contract.rotary import RotaryAngles, position_inputs, with_rotary_names

Array = npt.NDArray[Any]

MASKED = -1e4
"""Value added to the attention scores of masked keys. It is finite in float16 too, so a row that attends to nothing
stays finite.
"""
PORTABLE_CANVAS_INPUTS = (contract.IS_CANVAS, contract.SOFT_EMBEDDINGS, contract.UNIFORM)
"""Inputs of contract 2. The second channel of both masks replaces ATTENTION_START."""
PAST = "past_key_values"
"""The prefix cache as one input, dtype [2L, R * Hkv, P, D]: the contract's arrays, concatenated."""


def portable_input_names(*, with_rotary: bool = False, has_canvas: bool = False) -> list[str]:
    """Return the names of all inputs of a portable graph, in order. With `with_rotary`, it takes cosines and sines.

    With `has_canvas` it has contract 2. Masks then have the channels of full layers and of sliding windows.
    """
    names = [*contract.input_names(0), *(PORTABLE_CANVAS_INPUTS if has_canvas else ()), PAST]
    return with_rotary_names(names) if with_rotary else names


def portable_inputs(batch: WindowBatch, prefix_mask: Bool, rotary: RotaryAngles | None = None) -> dict[str, Array]:
    """Return all inputs but the cached keys and values (see `portable_past`). `prefix_mask` is [R, P].

    With `rotary`, the graph takes its cosines and sines in place of positions. The arrays are new and C-contiguous.
    """
    requests, branches, width = batch.input_ids.shape
    queries = batch.logits_index.shape[-1]
    first_row = np.arange(requests * branches).reshape(requests, branches, 1) * width
    window, prefix = _window_bias(batch.window_mask), _bias(prefix_mask)[:, None, None]
    further: dict[str, Array] = {}
    if batch.canvas is not None:
        (is_canvas, start, soft, uniform), prefix_rows = batch.canvas.arrays().values(), prefix_mask.shape[1]
        near = batch.window_mask & (batch.position_ids[:, :, None] >= start[..., None])
        window = np.concatenate([window, _window_bias(near)], axis=1)
        reached = np.arange(prefix_rows) >= start.reshape(requests, 1, -1, 1)
        prefix = np.concatenate(np.broadcast_arrays(prefix, np.minimum(prefix, _bias(reached))), axis=1)
        folded = (
            is_canvas.reshape(requests, -1),
            soft.reshape(requests, branches * width, -1),
            uniform.reshape(-1),
        )
        further = {name: array.copy() for name, array in zip(PORTABLE_CANVAS_INPUTS, folded, strict=True)}
    return {
        contract.INPUT_IDS: batch.input_ids.reshape(requests, -1).copy(),
        **position_inputs(batch.position_ids.reshape(requests, -1).copy(), rotary),
        contract.WINDOW_MASK: window,
        contract.PREFIX_MASK: prefix,
        contract.LOGITS_INDEX: (batch.logits_index + first_row).reshape(-1),
        contract.TEMPERATURE: np.repeat(batch.temperature, branches * queries)[:, None],
        **further,
    }


def portable_past(block: Rows) -> Rows:
    """Return the contract's prefix arrays [2L, R, Hkv, P, D] (in the order of contract.past_names) as a view shaped
    like PAST.
    """
    arrays, _, _, rows, head_size = block.shape
    return block.reshape(arrays, -1, rows, head_size)


def statistics_from_portable(outputs: Mapping[str, Array], batch: WindowBatch) -> Statistics:
    """Return the statistics of a forward of `batch` from its outputs by name, as views [R, B, Q, ...] of arrays [M,
    ...].
    """
    sampled = batch.logits_index.shape
    return statistics_of_arrays(outputs).mapped(lambda array: array.reshape(*sampled, *array.shape[1:]))


def rows_from_portable(rows: Rows, branches: int) -> Rows:
    """Return new key or value rows [R, Hkv, S, D] in the contract's shape, as a view [R, B, Hkv, W, D]."""
    requests, heads, _, head_size = rows.shape
    return rows.reshape(requests, heads, branches, -1, head_size).swapaxes(1, 2)


def _bias(mask: Bool) -> Float32:
    """Return a bias that is 0 for true entries of `mask` and MASKED for false ones."""
    return np.where(mask, np.float32(0), np.float32(MASKED))


def _window_bias(window_mask: Bool) -> Float32:
    """Return the mask [R, B, W, W] as a bias [R, 1, S, S] that separates the branches."""
    requests, branches, width, _ = window_mask.shape
    bias = np.full((requests, branches, width, branches, width), MASKED, np.float32)
    for branch in range(branches):
        bias[:, branch, :, branch] = _bias(window_mask[:, branch])
    return bias.reshape(requests, 1, branches * width, branches * width)
