"""A grammar's part in a round: which candidates may stand, and how far a round may unmask
(docs/how-to/structured-output.md).

Before the first masked position every token was read and is allowed; behind it tokens are provisional. The run that
begins at the first masked position is exact: each of its tokens is one that the grammar allows behind those before it,
the best that the row names, or else another. A token behind a position that stays masked is provisional.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.branch_grammar import BranchGrammar
from lopa.runtime.state.pipeline import hands_over
from lopa.runtime.state.reading import first_masked, room_behind
from lopa.runtime.state.windows import Windows
from lopa.runtime.strategy import Candidates

MAX_REFUSED = 16
"""Tokens that a grammar allows at one position and for which the answer has no room; then it goes the way out."""
_MIN_LOGPROB = np.float32(-100.0)
"""Log-probability of a token that the model did not name, where the last that it named has none."""


def rows_at_first_masked(
    branches: tuple[Branch, ...], windows: Windows, rows: RowStatistics, plan: DecodingPlan
) -> RowStatistics:
    """Return the `rows` [B, Q] of a round without what the grammar forbids at each branch's first masked position."""
    result = _copied(rows, plan)
    for number, (branch, asked) in enumerate(zip(branches, windows.asked, strict=True)):
        grammar = branch.grammar
        if grammar is None or grammar.ended:
            continue
        position = first_masked(branch, grammar)
        column = 0 if windows.kept and hands_over(branch) else windows.kept
        if column == windows.kept and (not len(asked) or asked[0] != position):
            continue
        room = room_behind(branch, position) + 1
        put_rows(result, (number, column), allowed_row(rows[number, column], grammar, room, plan))
    return result


def may_stand(branch: Branch, grammar: BranchGrammar, positions: Int64, candidates: Candidates) -> Bool:
    """Return which `candidates` [n] may be written at `positions` [n] of a settled branch as lookaheads, [n]."""
    if grammar.ended:
        return np.zeros(len(positions), np.bool_)
    result = grammar.has_text[candidates.tokens]
    for place in np.flatnonzero(positions == first_masked(branch, grammar)):
        room = room_behind(branch, int(positions[place]))
        result[place] = grammar.after(int(candidates.tokens[place]), room) is not None
    return result


class ConstrainedRun:
    """The run of a winner from its first masked position on, which a round extends until it is right.

    A round proposes candidates, asks `may_unmask`, lets the strategy choose, and calls `extend`; while that returns
    True it proposes again from `rows`. Ends of text are unmasked at the end of the run alone, and nothing behind it
    once the grammar has remasked as many tokens as the answer has positions: so decoding always ends.
    """

    def __init__(
        self, branch: Branch, grammar: BranchGrammar, positions: Int64, rows: RowStatistics, plan: DecodingPlan
    ) -> None:
        """Begin with `rows` [n], from rows_at_first_masked, about the asked `positions` [n], ascending."""
        self._branch, self._grammar, self._positions, self._plan = branch, grammar, positions, plan
        self._may_go_beyond = grammar.remasked < branch.layout.end - branch.layout.prompt
        self._in_run = np.zeros(len(positions), np.bool_)
        self._in_run[:1] = True
        self._refused: dict[int, set[int]] = {}
        self.rows = _copied(rows, plan)
        """[n]: the rows to propose candidates from."""

    def may_unmask(self, candidates: Candidates) -> Bool:
        """Return which positions [n] may be unmasked with these `candidates` [n], [n]."""
        return self._in_run | (self._grammar.has_text[candidates.tokens] & self._may_go_beyond)

    def extend(self, candidates: Candidates, chosen: Bool) -> bool:
        """Return whether to propose and choose again, now that `chosen` [n] of the `candidates` [n] are to be unmasked.

        The run then is one position longer, or its last row is without a token that cannot stand there.
        """
        place, behind = self._end_of_run(candidates, chosen)
        if place is None or (self._in_run[place] and not chosen[place]):
            return False
        room = room_behind(self._branch, int(self._positions[place]))
        token = int(candidates.tokens[place])
        stands = behind.after(token, room) is not None
        if stands and self._in_run[place]:
            return False
        self._in_run[place] = True
        if not stands:
            tokens = self._refused.setdefault(place, set())
            tokens.add(token)
            put_rows(self.rows, place, allowed_row(self.rows[place], behind, room + 1, self._plan, tokens))
        return True

    def _end_of_run(self, candidates: Candidates, chosen: Bool) -> tuple[int | None, BranchGrammar]:
        """Return the index of the position at which the run ends, and the grammar in front of it.

        It ends where nothing was chosen, or what cannot stand there; None where it ends at no position that was asked
        about: behind the last one, at an end of text, or at an unmasked token that will be remasked.
        """
        branch, grammar = self._branch, self._grammar
        position = first_masked(branch, grammar)
        places = {int(each): place for place, each in enumerate(self._positions)}
        while not grammar.ended:
            place = places.get(position)
            if place is None and not (position < len(branch.unmasked) and branch.unmasked[position]):
                return None, grammar
            if place is not None and not chosen[place]:
                return place, grammar
            token = branch.tokens[position] if place is None else candidates.tokens[place]
            after = grammar.after(int(token), room_behind(branch, position))
            if after is None:
                return place, grammar
            grammar, position = after, position + 1
        return None, grammar


def allowed_row(
    row: RowStatistics, grammar: BranchGrammar, room: int, plan: DecodingPlan, refused: Collection[int] = ()
) -> RowStatistics:
    """Return `row` [K] for the position behind `grammar` with its forbidden candidates last and without a probability.

    Logits are changed, and answered, only where tokens are drawn from them: of a large vocabulary they are long.
    `room` positions are left to the answer's end, this one included; `refused` tokens are forbidden too. Where no
    candidate is left, the row names the best of the logits, if it has them; else a piece of a candidate, the longest
    that is a token and allowed, the candidates in their order; else the first token of the way out.
    """
    if len(refused) > MAX_REFUSED:
        return _row_of_token(row, grammar.way_out(room), plan)
    kept = np.array([token not in refused and grammar.allows(token) for token in row.topk_ids.tolist()], np.bool_)
    if row.logits is not None and (plan.draws_from_logits or not kept.any()):
        may = grammar.allowed()
        may[list(refused)] = False
        if may.any():
            allowed_logits = np.where(may, row.logits, np.float32(-np.inf))
            if not kept.any():
                return _best_of_logits(row, row.logits, allowed_logits, plan)
            return RowStatistics(*_sorted(row, kept), row.entropy, allowed_logits)
    if kept.any():
        return RowStatistics(*_sorted(row, kept), row.entropy)
    pieces = (
        piece
        for candidate in row.topk_ids.tolist()
        for piece in grammar.pieces(candidate)
        if piece not in refused and grammar.allows(piece)
    )
    token = next(pieces, None)
    return _row_of_token(row, grammar.way_out(room) if token is None else token, plan)


def _sorted(row: RowStatistics, kept: Bool) -> tuple[Int64, Float32]:
    """Return ids and log-probabilities, those `kept` first."""
    order = np.argsort(~kept, kind="stable")
    return row.topk_ids[order], np.where(kept, row.topk_logprobs, np.float32(-np.inf))[order]


def _row_of_token(row: RowStatistics, token: int, plan: DecodingPlan) -> RowStatistics:
    """Return a row with `token` alone, which the model may have named last: no more probable than the last it named."""
    logprobs = np.full(row.topk_logprobs.shape, -np.inf, np.float32)
    logprobs[0] = max(row.topk_logprobs.min(), _MIN_LOGPROB)
    logits = None
    if row.logits is not None and plan.draws_from_logits:
        logits = np.full(row.logits.shape, -np.inf, np.float32)
        logits[token] = row.logits[token]
    return RowStatistics(np.full(row.topk_ids.shape, token, np.int64), logprobs, row.entropy, logits)


def _best_of_logits(
    row: RowStatistics, all_logits: Float32, allowed_logits: Float32, plan: DecodingPlan
) -> RowStatistics:
    scaled = all_logits / np.float32(plan.logits_temperature)
    best = np.argsort(-allowed_logits, kind="stable")[: len(row.topk_ids)]
    top = scaled.max()
    norm = top + np.log(np.exp(scaled - top).sum())
    logprobs = (allowed_logits[best] / np.float32(plan.logits_temperature) - norm).astype(np.float32)
    kept_logits = allowed_logits if plan.draws_from_logits else None
    return RowStatistics(best.astype(np.int64), logprobs, row.entropy, kept_logits)


def _copied(rows: RowStatistics, plan: DecodingPlan) -> RowStatistics:
    """Return `rows` to write into; logits, which are many, are copied only where they are read again."""
    return rows.copy() if plan.draws_from_logits else replace(replace(rows, logits=None).copy(), logits=rows.logits)
