"""The rows of a round in contract 2: tokens to encode causally, and the canvas behind them."""

import numpy as np

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.packed_batch import CanvasRows
from lopa.runtime.state.packed_rows import PackedRows, mask_of_numbers


def rows_of_canvas(
    due: Int64,
    canvases: Int64,
    first: int,
    window: int,
    uniform: Float32,
    *,
    soft_first: int | None,
    temperature: float | None = None,
) -> PackedRows:
    """Return the rows of the final tokens `due` from position `first` on, to be cached, and of `canvases` behind them.

    There is a window for each branch's canvas [B, C]. Only a first step, with one branch, has tokens that are due.

    In layers with a sliding window, a causal row attends to `window` positions, itself included. All rows of a canvas
    attend to the last window - 1 positions before it. `uniform` [C] are the numbers by which tokens are drawn.
    `soft_first` is the first row of the same canvas that the request's last forward sampled, or None in a first step.
    """
    before, (branches, size) = len(due), canvases.shape
    positions, is_canvas = np.arange(first, first + before + size), np.arange(before + size) >= before
    columns = np.arange(before, before + size)
    rows = np.arange(branches * size).reshape(branches, size) + before
    soft = np.full(before + size, -1) if soft_first is None else soft_first + np.arange(size)
    mask = mask_of_numbers(np.minimum(np.arange(before + size), before).astype(np.int32)).ravel()
    return PackedRows(
        prefix=first,
        commit=before,
        lengths=(before + size,) * branches,
        branch_lengths=(before + size,) * branches,
        input_ids=np.concatenate([due, canvases.ravel()]),
        positions=np.tile(positions, branches),
        mask=np.tile(mask, branches),
        sampled=(first + columns,) * branches,
        kept_columns=0,
        column_positions=np.tile(first + columns, branches),
        column_rows=rows.ravel(),
        cached=np.arange(first),
        temperature=temperature,
        canvas=CanvasRows(
            np.tile(is_canvas, branches),
            np.tile(np.where(is_canvas, first + before, positions) - (window - 1), branches),
            np.tile(soft, branches),
            np.tile(uniform, branches),
        ),
    )
