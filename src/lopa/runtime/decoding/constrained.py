"""Apply a grammar in a round: allowed candidates, and how far a round may unmask (docs/how-to/structured-output.md).

The grammar has accepted every token before the first masked position. Tokens behind a masked position are provisional.
The run that begins at the first masked position is exact: the grammar allows each of its tokens after all earlier
tokens. Such a token is the best allowed one of the row's candidates, or another one if none is allowed.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Branch, BranchGrammar
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.state.pipeline import first_masked, hands_over, positions_behind
from lopa.runtime.strategy import Candidates

MAX_REJECTED = 16
"""Maximum number of tokens rejected at one position because the answer could not end in time. After that the shortest
ending is written."""
_MIN_LOGPROB = np.float32(-100.0)
"""Lower bound of the log-probability of a token that is not among the model's candidates."""


def rows_at_first_masked(
    branches: tuple[Branch, ...], packed: PackedRows, rows: RowStatistics, params: DecodingParams
) -> RowStatistics:
    """Return the `rows` [C] of a round without the tokens that the grammar forbids at each branch's first masked
    position."""
    result = copied_rows(rows, params)
    for number, (branch, sampled) in enumerate(zip(branches, packed.sampled, strict=True)):
        grammar = branch.grammar
        if grammar is None or grammar.ended:
            continue
        position = first_masked(branch, grammar)
        column = packed.sampled_columns(number).start
        if packed.kept_columns and hands_over(branch):
            column -= 1
        elif not len(sampled) or sampled[0] != position:
            continue
        remaining = positions_behind(branch, position) + 1
        put_rows(result, column, allowed_row(rows[column], grammar, remaining, params))
    return result


def possible_lookaheads(branch: Branch, grammar: BranchGrammar, positions: Int64, candidates: Candidates) -> Bool:
    """Return which `candidates` [n] may be lookahead tokens at `positions` [n] of a normalized branch, [n]."""
    if grammar.ended:
        return np.zeros(len(positions), np.bool_)
    result = grammar.has_text[candidates.tokens]
    for place in np.flatnonzero(positions == first_masked(branch, grammar)):
        remaining = positions_behind(branch, int(positions[place]))
        result[place] = grammar.after(int(candidates.tokens[place]), remaining) is not None
    return result


class ConstrainedRun:
    """The winner's run of positions from the first masked one on, extended until every token in it is allowed.

    A round proposes candidates, calls `may_unmask`, lets the strategy choose, and calls `extend`. While `extend`
    returns True, the round proposes again from `rows`. An end of text is unmasked only at the end of the run. Once the
    grammar has remasked as many tokens as the answer has positions, nothing behind the run is unmasked, so decoding
    always ends.
    """

    def __init__(
        self, branch: Branch, grammar: BranchGrammar, positions: Int64, rows: RowStatistics, params: DecodingParams
    ) -> None:
        """Start a run from `rows` [n], the result of rows_at_first_masked, at the ascending sampled `positions` [n]."""
        self._branch, self._grammar, self._positions, self._params = branch, grammar, positions, params
        self._may_go_beyond = grammar.remasked < branch.layout.end - branch.layout.prompt
        self._in_run = np.zeros(len(positions), np.bool_)
        self._in_run[:1] = True
        self._rejected: dict[int, set[int]] = {}
        self.rows = copied_rows(rows, params)
        """[n]: rows to propose candidates from."""

    def may_unmask(self, candidates: Candidates) -> Bool:
        """Return a mask [n], True for the positions that may be unmasked with these `candidates` [n]."""
        return self._in_run | (self._grammar.has_text[candidates.tokens] & self._may_go_beyond)

    def extend(self, candidates: Candidates, chosen: Bool) -> bool:
        """Return True to propose and choose again, after the strategy chose `chosen` [n] of the `candidates` [n].

        The run is then one position longer, or its last row lost a token that is not allowed there. A position that the
        strategy could choose, but did not, is no reason to choose again.
        """
        place, behind = self._end_of_run(candidates, chosen)
        if place is None or (self._in_run[place] and not chosen[place]):
            return False
        remaining = positions_behind(self._branch, int(self._positions[place]))
        token = int(candidates.tokens[place])
        is_possible = behind.after(token, remaining) is not None
        if is_possible and self.may_unmask(candidates)[place]:
            return False  # the strategy could choose it already, and would choose the same positions again
        self._in_run[place] = True
        if not is_possible:
            tokens = self._rejected.setdefault(place, set())
            if token in tokens:  # only the ending's own token is proposed twice
                raise RuntimeError("the grammar rejects its own ending (this is a bug in lopa, please report it)")
            tokens.add(token)
            put_rows(self.rows, place, allowed_row(self.rows[place], behind, remaining + 1, self._params, tokens))
        return True

    def _end_of_run(self, candidates: Candidates, chosen: Bool) -> tuple[int | None, BranchGrammar]:
        """Return the index of the position at which the run ends, and the grammar before it.

        The run ends where nothing was chosen or the chosen token is not allowed. The index is None if the run ends at
        the last position, an end of text, or an unmasked token that will be remasked.
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
            after = grammar.after(int(token), positions_behind(branch, position))
            if after is None:
                return place, grammar
            grammar, position = after, position + 1
        return None, grammar


def allowed_row(
    row: RowStatistics, grammar: BranchGrammar, remaining: int, params: DecodingParams, rejected: Collection[int] = ()
) -> RowStatistics:
    """Return `row` [K] of the position that follows `grammar`, with forbidden candidates last and with probability 0.

    Logits are changed, and returned, only if tokens are drawn from them, because they are large. `remaining` is the
    number of positions left in the answer, including this one. `rejected` tokens are forbidden too. If no candidate is
    allowed, the row holds the best allowed token of the logits. Without logits it is the longest allowed token that
    begins the text of a candidate, or otherwise the first token of the shortest ending.
    """
    if len(rejected) > MAX_REJECTED:
        return row_of_token(row, grammar.first_ending_token(remaining), params)
    keep = np.array([token not in rejected and grammar.allows(token) for token in row.topk_ids.tolist()], np.bool_)
    if row.logits is not None and (params.draws_from_logits or not keep.any()):
        may = grammar.allowed()
        may[list(rejected)] = False
        if may.any():
            allowed_logits = np.where(may, row.logits, np.float32(-np.inf))
            if not keep.any():
                return _best_of_logits(row, row.logits, allowed_logits, params)
            return RowStatistics(*sorted_candidates(row, keep), row.entropy, allowed_logits)
    if keep.any():
        return RowStatistics(*sorted_candidates(row, keep), row.entropy)
    pieces = (
        piece
        for candidate in row.topk_ids.tolist()
        for piece in grammar.pieces(candidate)
        if piece not in rejected and grammar.allows(piece)
    )
    token = next(pieces, None)
    return row_of_token(row, grammar.first_ending_token(remaining) if token is None else token, params)


def _best_of_logits(
    row: RowStatistics, all_logits: Float32, allowed_logits: Float32, params: DecodingParams
) -> RowStatistics:
    scaled = all_logits / np.float32(params.logits_temperature)
    best = np.argsort(-allowed_logits, kind="stable")[: len(row.topk_ids)]
    top = scaled.max()
    norm = top + np.log(np.exp(scaled - top).sum())
    logprobs = (allowed_logits[best] / np.float32(params.logits_temperature) - norm).astype(np.float32)
    kept_logits = allowed_logits if params.draws_from_logits else None
    return RowStatistics(best.astype(np.int64), logprobs, row.entropy, kept_logits)


def sorted_candidates(row: RowStatistics, keep: Bool) -> tuple[Int64, Float32]:
    """Return ids and log-probabilities with the candidates selected by `keep` first, and the others impossible."""
    order = np.argsort(~keep, kind="stable")
    return row.topk_ids[order], np.where(keep, row.topk_logprobs, np.float32(-np.inf))[order]


def row_of_token(row: RowStatistics, token: int, params: DecodingParams) -> RowStatistics:
    """Return a row with `token` alone, no more probable than the last candidate of `row`."""
    logprobs = np.full(row.topk_logprobs.shape, -np.inf, np.float32)
    logprobs[0] = max(row.topk_logprobs.min(), _MIN_LOGPROB)
    logits = None
    if row.logits is not None and params.draws_from_logits:
        logits = np.full(row.logits.shape, -np.inf, np.float32)
        logits[token] = row.logits[token]
    return RowStatistics(np.full(row.topk_ids.shape, token, np.int64), logprobs, row.entropy, logits)


def copied_rows(rows: RowStatistics, params: DecodingParams) -> RowStatistics:
    """Return a copy of `rows` to modify. Logits are large and copied only if they are read again."""
    return rows.copy() if params.draws_from_logits else replace(replace(rows, logits=None).copy(), logits=rows.logits)
