"""The rows of a round in contract 2: tokens to encode causally, and the canvas behind them."""

import numpy as np

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.packed_batch import CanvasRows
from lopa.runtime.state.packed_rows import PackedRows, mask_of_numbers


def rows_of_canvas(
    due: Int64,
    canvas: Int64,
    first: int,
    window: int,
    uniform: Float32,
    *,
    has_soft_rows: bool,
    temperature: float | None = None,
) -> PackedRows:
    """Return the rows of the final tokens `due` from position `first` on, to be cached, and of `canvas` behind them.

    In layers with a sliding window, a causal row attends to `window` positions, itself included. All rows of a canvas
    attend to the last window - 1 positions before it. `uniform` [canvas] are the numbers by which its tokens are drawn.
    With `has_soft_rows` the last forward of the request sampled the same canvas.
    """
    before, size = len(due), len(canvas)
    positions, is_canvas = np.arange(first, first + before + size), np.arange(before + size) >= before
    columns = np.arange(before, before + size)
    return PackedRows(
        prefix=first,
        commit=before,
        lengths=(before + size,),
        branch_lengths=(before + size,),
        input_ids=np.concatenate([due, canvas]),
        positions=positions,
        mask=mask_of_numbers(np.minimum(np.arange(before + size), before).astype(np.int32)).ravel(),
        sampled=(first + columns,),
        kept_columns=0,
        column_positions=first + columns,
        column_rows=columns,
        cached=np.arange(first),
        temperature=temperature,
        canvas=CanvasRows(
            is_canvas,
            np.where(is_canvas, first + before, positions) - (window - 1),
            columns - before if has_soft_rows and not before else np.full(before + size, -1),
            uniform,
        ),
    )
