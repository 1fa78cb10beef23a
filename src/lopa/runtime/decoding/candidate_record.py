"""Record of the best candidates of each position in the step that proposed its token, for the option `top_logprobs`.

The candidates are the model's own: before a grammar, and before a strategy changes their probabilities.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from lopa.runtime.contract.row_statistics import RowStatistics, TokenLogprob, candidates_from_row
from lopa.runtime.decoding.extension import LoopState
from lopa.runtime.decoding.round import RoundEnd
from lopa.runtime.state.answer_state import AnswerState
from lopa.runtime.state.branch import Branch, Lookahead
from lopa.runtime.state.packed_rows import PackedRows


class CandidateRecord:
    """The best candidates of every position that was unmasked so far. A later step replaces a position's entry."""

    def __init__(self, count: int) -> None:
        """Record `count` candidates per position, except tokens that are never written."""
        self._count, self._without = count, tuple[int, ...]()
        self._found: dict[int, tuple[TokenLogprob, ...]] = {}
        self._proposed: dict[int, tuple[TokenLogprob, ...]] = {}
        """Candidates of the lookahead positions of the next round, which may lose it."""

    def answer(self, loop: LoopState, answer: AnswerState, end: RoundEnd | None) -> AnswerState:
        """Record the tokens of a round, and return the answer with the best candidates of every position."""
        self._without = loop.context.unwritten
        if end is not None:
            self._add_round(loop, end)
        return answer._replace(recorded=self.of_positions)

    def _add_round(self, loop: LoopState, end: RoundEnd) -> None:
        packed, rows, winner = end.scores.packed, end.rows, end.numbers[-1]
        if loop.context.params.anytime:
            self.add(winner, packed.sampled[winner].tolist(), packed, rows)
        self.accept(end.scores.branches[winner])
        for number, unmasked, edited in zip(end.numbers, end.unmasked, end.edited, strict=True):
            self.add(number, [*unmasked.positions.tolist(), *edited.positions.tolist()], packed, rows)
        self.propose(winner, end.lookaheads, packed, rows)
        if end.places is not None:
            self.move(end.places)
        self.accept(loop.anchor)  # a lookahead token that completes the answer

    def add(self, branch: int, positions: Iterable[int], packed: PackedRows, rows: RowStatistics) -> None:
        """Record `positions` whose tokens were proposed by the rows [B, Q] of the branch with index `branch`."""
        self._found |= {position: self._candidates(branch, position, packed, rows) for position in positions}

    def propose(self, branch: int, lookaheads: Iterable[Lookahead], packed: PackedRows, rows: RowStatistics) -> None:
        """Keep the candidates of the next round's lookahead positions, from the rows of a `branch`."""
        self._proposed = {each.position: self._candidates(branch, each.position, packed, rows) for each in lookaheads}

    def accept(self, branch: Branch) -> None:
        """Record the lookahead position of a branch that is accepted, if it has one."""
        if branch.lookahead is not None:
            position = branch.lookahead.position
            self._found[position] = self._proposed[position]

    def move(self, places: Mapping[int, int]) -> None:
        """Move the candidates of each position to its new place, and forget those of positions without one."""
        self._found = {places[position]: found for position, found in self._found.items() if position in places}

    def of_positions(self, positions: Iterable[int], is_known: Iterable[bool]) -> list[tuple[TokenLogprob, ...]]:
        """Return the candidates of each of `positions`, none where `is_known` is False."""
        pairs = zip(positions, is_known, strict=True)
        return [self._found[position] if known else () for position, known in pairs]

    def _candidates(
        self, branch: int, position: int, packed: PackedRows, rows: RowStatistics
    ) -> tuple[TokenLogprob, ...]:
        own = packed.column_positions[packed.first_columns[branch] :]
        column = packed.first_columns[branch] + int(np.argmax(own == position))
        return candidates_from_row(rows[column], self._count, self._without)
