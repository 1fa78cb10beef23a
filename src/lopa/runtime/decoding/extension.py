"""Extensions of the decoding loop: what a request has in addition to LoPA, asked at five points."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.round import AfterUnmasking, RoundEnd
from lopa.runtime.state.answer_state import AnswerState
from lopa.runtime.state.branch import Branch, BranchGrammar, first_branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import PackedRows


class LoopState(Protocol):
    """The state of the loop that asks an extension."""

    context: Context
    branches: tuple[Branch, ...]
    """Branches of the current round, and behind it those of the next one; the anchor last."""
    steps: int
    """Number of rounds."""
    strategy_steps: int
    """Number of the strategy's steps before the round, which seeds draws."""
    generated_positions: int
    """Maximum number of generated positions before the round."""
    after_unmasking: tuple[AfterUnmasking, ...]
    """`unmasked` of the extensions."""

    @property
    def anchor(self) -> Branch:
        """Accepted sequence so far."""


Start = tuple[Context, tuple[Branch, ...]]
"""Constants of a decode, and the branches of its first round, the anchor last."""


@dataclass(frozen=True)
class Extension:
    """A feature of one request. The loop asks it at each point for which it has a function."""

    start: Callable[[Context, tuple[Branch, ...]], Start] | None = None
    """Changes the start of a decode."""
    rows: Callable[[LoopState, PackedRows, RowStatistics], RowStatistics] | None = None
    """Changes the statistics [C] of a round before they are scored."""
    candidates: Callable[[LoopState, PackedRows, RowStatistics], RoundEnd | None] | None = None
    """Scores and continues a round in another way than the loop. It may return None, to leave the round to the loop."""
    unmasked: AfterUnmasking | None = None
    """Changes the outcome of a step."""
    answer: Callable[[LoopState, AnswerState, RoundEnd | None], AnswerState] | None = None
    """Changes the answer after a round with the given end, or before the first one, which has none."""


def cached_prompt(count: int) -> Extension:
    """Return the extension with which the rows of the first `count` positions, finished blocks, are cached."""

    def start(context: Context, branches: tuple[Branch, ...]) -> Start:
        layout = branches[-1].layout
        return context, (first_branch(branches[-1].tokens[: layout.prompt], layout, context, cached=count),)

    return Extension(start=start)


def constraint(grammar: BranchGrammar) -> Extension:
    """Return the extension whose answer satisfies `grammar`, in its first state."""

    def start(context: Context, branches: tuple[Branch, ...]) -> Start:
        final = grammar if context.params.edits else None
        return context, (*branches[:-1], branches[-1].changed(grammar=grammar, final_grammar=final))

    return Extension(start=start)
