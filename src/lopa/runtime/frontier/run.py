"""How far a round may decide positions from the frontier on, and what it may decide behind. Pure.

The run that begins at the frontier is exact: each of its tokens is one that the grammar allows behind those before it,
the best that the row names, or else another (rows). A token behind a position that stays open is provisional.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.frontier.rows import allowed_row
from lopa.runtime.frontier.settled import frontier, room_behind
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.sequence.branches import Branch, hands_over
from lopa.runtime.sequence.row_statistics import RowStatistics, put_rows
from lopa.runtime.sequence.windows import Windows
from lopa.runtime.strategy.candidates import Candidates

Propose = Callable[[RowStatistics, Int64], Candidates]
"""Candidates [n] of rows [n] about positions [n]."""
Choose = Callable[[Candidates, Bool], Bool]
"""[n]: which positions to decide, with these candidates [n], of those that may be decided [n]."""


def rows_at_frontiers(
    branches: tuple[Branch, ...], windows: Windows, rows: RowStatistics, config: GenerationConfig
) -> RowStatistics:
    """The `rows` [B, Q] of a round, those of each branch's frontier without what its grammar forbids there."""
    result = _copied(rows, config)
    for number, (branch, asked) in enumerate(zip(branches, windows.asked, strict=True)):
        state = branch.grammar
        if state is None or state.ended:
            continue
        position = frontier(branch, state)
        column = 0 if windows.kept and hands_over(branch) else windows.kept
        if column == windows.kept and (not len(asked) or asked[0] != position):
            continue
        room = room_behind(branch, position) + 1
        put_rows(result, (number, column), allowed_row(rows[number, column], state, room, config))
    return result


def run_from_frontier(
    branch: Branch, asked: Int64, rows: RowStatistics, propose: Propose, choose: Choose, config: GenerationConfig
) -> tuple[Candidates, Bool]:
    """The candidates [n] of a winner's `asked` positions [n], ascending, and which of them are decided.

    `rows` [n] are those of rows_at_frontiers. Ends of text are decided at the end of the run alone, and nothing behind
    it once the grammar has taken back as many tokens as the answer has positions: so decoding always ends.
    """
    rows, candidates, state = _copied(rows, config), propose(rows, asked), branch.grammar
    assert state is not None
    has_text = state.reading.vocabulary.has_text
    few_taken_back = state.taken_back < branch.layout.end - branch.layout.prompt
    in_run = np.zeros(len(asked), np.bool_)
    in_run[:1] = True
    refused: dict[int, set[int]] = {}
    while True:
        chosen = choose(candidates, in_run | (has_text[candidates.tokens] & few_taken_back))
        place, behind = _walked(branch, state, asked, candidates, chosen)
        if place is None or (in_run[place] and not chosen[place]):
            return candidates, chosen
        room = room_behind(branch, int(asked[place]))
        token = int(candidates.tokens[place])
        stands = behind.after(token, room) is not None
        if stands and in_run[place]:
            return candidates, chosen
        in_run[place] = True
        if not stands:
            tokens = refused.setdefault(place, set())
            tokens.add(token)
            put_rows(rows, place, allowed_row(rows[place], behind, room + 1, config, tokens))
            candidates = propose(rows, asked)


def _copied(rows: RowStatistics, config: GenerationConfig) -> RowStatistics:
    """`rows` to write into; logits, which are many, only where they are read again."""
    return rows.copy() if config.draws_from_logits else replace(replace(rows, logits=None).copy(), logits=rows.logits)


def may_stand(branch: Branch, positions: Int64, candidates: Candidates) -> Bool:
    """[n]: which `candidates` [n] may be written at `positions` [n] of a settled branch, as lookaheads are."""
    state = branch.grammar
    if state is None or state.ended:
        return np.full(len(positions), state is None)
    result = state.reading.vocabulary.has_text[candidates.tokens]
    at = np.flatnonzero(positions == frontier(branch, state))
    for place in at:
        room = room_behind(branch, int(positions[place]))
        result[place] = state.after(int(candidates.tokens[place]), room) is not None
    return result


def _walked(
    branch: Branch, state: GrammarState, asked: Int64, candidates: Candidates, chosen: Bool
) -> tuple[int | None, GrammarState]:
    """The index in `asked` of the position at which the run from the frontier ends, and the state in front of it.

    It ends where nothing was chosen, or what cannot stand there; None where it ends at no position that was asked
    about: behind the last one, at an end of text, or at a decided token that will be taken back.
    """
    position = frontier(branch, state)
    places = {int(each): place for place, each in enumerate(asked)}
    while not state.ended:
        place = places.get(position)
        if place is None and not (position < len(branch.decided) and branch.decided[position]):
            return None, state
        if place is not None and not chosen[place]:
            return place, state
        token = branch.tokens[position] if place is None else candidates.tokens[place]
        after = state.after(int(token), room_behind(branch, position))
        if after is None:
            return place, state
        state, position = after, position + 1
    return None, state
