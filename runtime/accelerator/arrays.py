"""Shapes and types of everything that goes in and out of a graph for a forward in the shape of a gear.

For engines that are told them with every address; both dialects (docs/contract.md). Knows no engine.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lopa.runtime import contract
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Sizes
from lopa.runtime.contract.portable_form import PAST
from lopa.runtime.contract.stored_floats import stored_dtype


@dataclass(frozen=True)
class ArrayForm:
    """One input or output."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """As stored_dtype gives it."""

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def inputs_of_gear(gear: Sizes, manifest: Manifest) -> dict[str, ArrayForm]:
    """All inputs of the graph in the manifest's dialect, by name."""
    r, b, w, p, q = gear.requests, gear.branches, gear.window, gear.prefix, gear.wanted
    s = b * w
    sizes = manifest.dimensions
    row = stored_dtype(manifest.dtype)
    ids, mask, temperature = np.dtype(np.int64), np.dtype(np.bool_), np.dtype(np.float32)
    if manifest.dialect == "portable":
        known = {
            contract.INPUT_IDS: ArrayForm((r, s), ids),
            contract.POSITION_IDS: ArrayForm((r, s), ids),
            contract.WINDOW_MASK: ArrayForm((r, 1, s, s), temperature),
            contract.PREFIX_MASK: ArrayForm((r, 1, 1, p), temperature),
            contract.LOGITS_INDEX: ArrayForm((r * b * q,), ids),
            contract.TEMPERATURE: ArrayForm((r * b * q, 1), temperature),
            PAST: ArrayForm((2 * sizes.layers, r * sizes.kv_heads, p, sizes.head_size), row),
        }
    else:
        known = {
            contract.INPUT_IDS: ArrayForm((r, b, w), ids),
            contract.POSITION_IDS: ArrayForm((r, b, w), ids),
            contract.WINDOW_MASK: ArrayForm((r, b, w, w), mask),
            contract.PREFIX_MASK: ArrayForm((r, p), mask),
            contract.LOGITS_INDEX: ArrayForm((r, b, q), ids),
            contract.TEMPERATURE: ArrayForm((r,), temperature),
            **dict.fromkeys(contract.past_names(sizes.layers), ArrayForm((r, sizes.kv_heads, p, sizes.head_size), row)),
        }
    return known


def outputs_of_gear(gear: Sizes, manifest: Manifest) -> dict[str, ArrayForm]:
    """All outputs of the graph in the manifest's dialect, by name."""
    r, b, w, q = gear.requests, gear.branches, gear.window, gear.wanted
    sizes = manifest.dimensions
    if manifest.dialect == "portable":
        wanted: tuple[int, ...] = (r * b * q,)
        rows: tuple[int, ...] = (r, sizes.kv_heads, b * w, sizes.head_size)
    else:
        wanted, rows = (r, b, q), (r, b, sizes.kv_heads, w, sizes.head_size)
    ids, floats = np.dtype(np.int64), np.dtype(np.float32)
    known = {
        contract.TOPK_IDS: ArrayForm((*wanted, contract.TOP_K), ids),
        contract.TOPK_LOGPROBS: ArrayForm((*wanted, contract.TOP_K), floats),
        contract.ENTROPY: ArrayForm(wanted, floats),
        **dict.fromkeys(contract.window_names(sizes.layers), ArrayForm(rows, stored_dtype(manifest.dtype))),
    }
    return known | ({contract.LOGITS: ArrayForm((*wanted, sizes.vocab_size), floats)} if manifest.with_logits else {})


def bytes_but_prefix(gear: Sizes, manifest: Manifest) -> dict[str, int]:
    """Of every input and output but the prefix, by name."""
    arrays = inputs_of_gear(gear, manifest) | outputs_of_gear(gear, manifest)
    past = {PAST, *contract.past_names(manifest.dimensions.layers)}
    return {name: array.size for name, array in arrays.items() if name not in past}
