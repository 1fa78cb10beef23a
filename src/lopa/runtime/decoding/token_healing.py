"""Token healing: tokens that may be written at the edges of holes (lopa.runtime.text.encoded_holes)."""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.decoding.kept_candidates import copied_rows, row_of_token, sorted_candidates
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.holes import Holes
from lopa.runtime.state.packed_rows import PackedRows


def healed_rows(
    packed: PackedRows, rows: RowStatistics, holes: Sequence[Holes], params: DecodingParams
) -> RowStatistics:
    """Return the statistics `rows` [B, Q] with only allowed candidates at the boundaries of the `holes` of each branch.

    The other candidates get probability 0. If no candidate is allowed, the token of the given text remains. Logits keep
    the allowed candidates only.
    """
    result = copied_rows(rows, params)
    for number, (positions, own) in enumerate(zip(packed.sampled, holes, strict=True)):
        for place in np.flatnonzero(np.isin(positions, list(own.boundary_ids))):
            column = packed.sampled_columns(number).start + int(place)
            put_rows(result, column, _allowed_row(rows[column], int(positions[place]), own, params))
    return result


def _allowed_row(row: RowStatistics, position: int, holes: Holes, params: DecodingParams) -> RowStatistics:
    """Return `row` [K] of `position` with the allowed candidates first."""
    keep = np.array([holes.allows(position, token) for token in row.topk_ids.tolist()], np.bool_)
    if not keep.any():
        return row_of_token(row, holes.boundary_ids[position], params)
    logits = None
    if row.logits is not None and params.draws_from_logits:
        may = np.isin(np.arange(len(row.logits)), row.topk_ids[keep])
        logits = np.where(may, row.logits, np.float32(-np.inf))
    return RowStatistics(*sorted_candidates(row, keep), row.entropy, logits)
