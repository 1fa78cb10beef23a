"""Work of one forward of a side: operations that its rows need, and bytes of the matrices in the form it reads."""

import math
from dataclasses import dataclass

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.network import network_from_dimensions
from tools.peers.gguf_file import KINDS, matrix_bytes
from tools.peers.sides import Side

_WEIGHT_BYTES = {"f32": 4.0, "bf16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 32}
"""Bytes per weight by form. int4 has a float32 scale per 32 weights. Scales of whole columns are not counted."""


@dataclass(frozen=True)
class SideWork:
    """Work of one forward."""

    operations: int
    """Operations of all products. A multiply-add counts as two."""
    matrix_bytes: int | None
    """Bytes of all matrices that the rows use, each read once, or None if the side's form is unknown."""
    touched: float | None = None
    """Share of the experts whose bytes are counted, or None without experts."""


def work_of_side(side: Side, sizes: ModelDimensions, shape: ForwardShape, touched: float | None = None) -> SideWork:
    """Return the work of `side` for one forward of `shape`, with logits or statistics of every row it computes.

    `touched` is the measured share of the experts that the rows use. Without it the share is the expected one of
    independent choices.
    """
    tensors = network_from_dimensions(sizes).tensors
    without_cache = side.attention == "whole"
    rows = shape.branches * shape.window + (shape.prefix if without_cache else 0)
    attention = 4 * rows * (shape.prefix + shape.window) * sizes.heads * sizes.head_size * sizes.layers
    products = sum(int(tensor.row_operations) for tensor in tensors.values()) * rows
    if touched is None:
        touched = next((each.share_of_rows(rows) for each in tensors.values() if each.row_share < 1), None)
    return SideWork(attention + products, _bytes_of_form(side.form, sizes, touched), touched)


def _bytes_of_form(form: str | None, sizes: ModelDimensions, touched: float | None) -> int | None:
    if form is None:
        return None
    if form in KINDS:
        return matrix_bytes(sizes, form, touched)
    found = 0.0
    for each in network_from_dimensions(sizes).tensors.values():
        if each.role == "matrix":
            share = 1.0 if touched is None or each.row_share == 1 else touched
            found += (4.0 if each.is_float32 else _WEIGHT_BYTES[form]) * share * math.prod(each.shape)
    return int(found)
