"""A forward and its correct results in host memory, also as the inputs and outputs of a graph."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.bundle.manifest import Dialect
from lopa.runtime.contract import Rows, Statistics, WindowBatch, past_names, window_names
from lopa.runtime.contract.portable_form import PAST, portable_inputs, portable_past
from lopa.runtime.contract.rotary import RotaryAngles, position_inputs
from lopa.runtime.sessions.prefix_cache import Prefix

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True, eq=False)
class AnsweredForward:
    """Inputs of a forward and its correct results. The arrays must not change."""

    batch: WindowBatch
    prefix: Prefix
    statistics: Statistics
    rows: tuple[Rows, ...]
    """New rows in the order of contract.window_names, each [R, B, Hkv, W, D] in the bundle's dtype."""


def inputs_of_graph(forward: AnsweredForward, dialect: Dialect, rotary: RotaryAngles | None = None) -> Arrays:
    """Return all inputs of a graph of `dialect` by name. With `rotary`, it takes cosines and sines, not positions."""
    batch, prefix = forward.batch, forward.prefix
    if dialect == "portable":
        return portable_inputs(batch, prefix.mask, rotary) | {PAST: portable_past(prefix.block)}
    return {
        contract.INPUT_IDS: batch.input_ids,
        **position_inputs(batch.position_ids, rotary),
        contract.WINDOW_MASK: batch.window_mask,
        contract.PREFIX_MASK: prefix.mask,
        contract.LOGITS_INDEX: batch.logits_index,
        contract.TEMPERATURE: batch.temperature,
        **dict(zip(past_names(len(prefix.arrays) // 2), prefix.arrays, strict=True)),
    }


def outputs_of_graph(forward: AnsweredForward, dialect: Dialect) -> Arrays:
    """Return all outputs of a correct graph of `dialect` by name."""
    statistics = forward.statistics
    found: Arrays = {
        contract.TOPK_IDS: statistics.topk_ids,
        contract.TOPK_LOGPROBS: statistics.topk_logprobs,
        contract.ENTROPY: statistics.entropy,
    }
    if statistics.logits is not None:
        found[contract.LOGITS] = statistics.logits
    rows = dict(zip(window_names(len(forward.rows) // 2), forward.rows, strict=True))
    if dialect == "standard":
        return found | rows
    queries = forward.batch.logits_index.size
    folded = {name: array.reshape(queries, *array.shape[3:]) for name, array in found.items()}
    return folded | {name: _concatenate_branches(array) for name, array in rows.items()}


def _concatenate_branches(rows: Rows) -> Rows:
    """Return the rows [R, B, Hkv, W, D] with the branches joined into one axis: [R, Hkv, B x W, D]."""
    requests, _, heads, _, head_size = rows.shape
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(requests, heads, -1, head_size)
