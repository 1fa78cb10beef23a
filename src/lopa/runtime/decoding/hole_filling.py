"""Filling of the holes of a text, of one length or the most probable of several.

Token healing decides which tokens may be written at the edges of holes (lopa.runtime.text.encoded_holes).
"""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.decoding.constrained import copied_rows, row_of_token, sorted_candidates
from lopa.runtime.decoding.extension import Extension, LoopState, Start
from lopa.runtime.decoding.round import RoundEnd
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.answer_state import AnswerState
from lopa.runtime.state.branch import Branch, first_branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import layout_of_holes
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.text.encoded_holes import EncodedHoles


class HoleFilling:
    """Filling of the holes of a text. With several lengths the first round compares them, one branch each."""

    def __init__(self, lengths: Sequence[EncodedHoles]) -> None:
        """Fill the holes of one of these `lengths`, ascending, at least one."""
        self._lengths = tuple(lengths)

    def extension(self) -> Extension:
        """Return the extension of the loop."""
        return Extension(start=self.start, rows=self.rows, answer=self.answer)

    def start(self, context: Context, _: tuple[Branch, ...]) -> Start:
        """Return a branch of each length, in which the holes are masked."""
        params, shift = context.params, context.prediction_shift
        layouts = [layout_of_holes(each.holes, params, shift, in_turn=each.in_turn) for each in self._lengths]
        pairs = zip(self._lengths, layouts, strict=True)
        return context, tuple(first_branch(each.ids, layout, context) for each, layout in pairs)

    def rows(self, loop: LoopState, packed: PackedRows, rows: RowStatistics) -> RowStatistics:
        """Return the statistics with allowed tokens only at the edges of holes."""
        lengths = self._lengths
        if not lengths[0].boundary_tokens:
            return rows
        per_branch = lengths if len(lengths) > 1 else lengths * len(loop.branches)
        return healed_rows(packed, rows, per_branch, loop.context.params)

    def answer(self, loop: LoopState, answer: AnswerState, end: RoundEnd | None) -> AnswerState:
        """Return the answer from the first hole to the last one, of the winner's length."""
        if end is not None and len(self._lengths) > 1:
            self._lengths = self._lengths[end.numbers[-1] : end.numbers[-1] + 1]
        holes, layout = self._lengths[-1], loop.anchor.layout
        return answer._replace(
            end=layout.end,
            final=min(answer.final, layout.end - layout.prompt),
            generated_positions=max(loop.generated_positions, sum(end - start for start, end in holes.holes)),
            holes=holes,
        )


def healed_rows(
    packed: PackedRows, rows: RowStatistics, holes: Sequence[EncodedHoles], params: DecodingParams
) -> RowStatistics:
    """Return the statistics `rows` [B, Q] with only allowed candidates at the boundaries of the `holes` of each branch.

    The other candidates get probability 0. If no candidate is allowed, the token of the given text remains. Logits keep
    the allowed candidates only.
    """
    result = copied_rows(rows, params)
    for number, (positions, own) in enumerate(zip(packed.sampled, holes, strict=True)):
        for place in np.flatnonzero(np.isin(positions, list(own.boundary_token_at))):
            column = packed.sampled_columns(number).start + int(place)
            put_rows(result, column, _allowed_row(rows[column], int(positions[place]), own, params))
    return result


def _allowed_row(row: RowStatistics, position: int, holes: EncodedHoles, params: DecodingParams) -> RowStatistics:
    """Return `row` [K] of `position` with the allowed candidates first."""
    keep = np.array([holes.allows(position, token) for token in row.topk_ids.tolist()], np.bool_)
    if not keep.any():
        return row_of_token(row, holes.boundary_token_at[position].token, params)
    logits = None
    if row.logits is not None and params.draws_from_logits:
        may = np.isin(np.arange(len(row.logits)), row.topk_ids[keep])
        logits = np.where(may, row.logits, np.float32(-np.inf))
    return RowStatistics(*sorted_candidates(row, keep), row.entropy, logits)
