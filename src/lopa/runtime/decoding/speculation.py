"""A round of exact speculative decoding, which accepts drafts of the strategy's next states (FreeDave, arXiv
2510.00294).

A forward computes the state that a strategy has reached, and drafts of its next states, one per branch. If the
strategy's next state equals a draft, the round continues from there without another forward (docs/concepts/decoding.md,
"Exact speculative decoding").
"""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.extension import Extension, LoopState
from lopa.runtime.decoding.round import (
    AfterUnmasking,
    EditedTokens,
    RoundEnd,
    Scores,
    UnmaskedTokens,
    scores_from_rows,
    strategy_step,
)
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Branch, stop_reason
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import BranchRows, PackedRows, rows_from_branch
from lopa.runtime.state.pipeline import hands_over


def speculation() -> Extension:
    """Return the extension that accepts drafts of the strategy's next states."""
    return Extension(candidates=_speculative_round)


def _speculative_round(loop: LoopState, packed: PackedRows, rows: RowStatistics) -> RoundEnd | None:
    """Follow the strategy through the computed states, and draft its next states.

    The first round of holes with several lengths, whose branches differ in length, is an ordinary one.
    """
    context, branches, steps = loop.context, loop.branches, loop.strategy_steps
    if branches[0].layout != branches[-1].layout:
        return None
    scores = scores_from_rows(branches, packed, rows, steps + 1, context)
    end = verify(scores, rows, steps, context, loop.after_unmasking)
    if any(map(len, packed.sampled)) or hands_over(branches[-1]):
        steps += len(end.states)
    return end._replace(branches=(*drafts(end, steps, context, loop.after_unmasking), *end.branches))


def verify(
    scores: Scores, rows: RowStatistics, steps: int, context: Context, after: Sequence[AfterUnmasking]
) -> RoundEnd:
    """Return the end of a round whose branches are drafts, then the anchor after the first `steps` steps.

    Its states are those that the strategy reaches; only the last one continues.
    """
    branches = scores.branches
    chain = (branches[-1], *branches[:-1])
    states, unmasked, numbers, edited = list[Branch](), list[UnmaskedTokens](), list[int](), list[EditedTokens]()
    at: int | None = 0
    while at is not None:
        number = at - 1 if at else len(branches) - 1
        before = states[-1] if states else branches[-1]
        state, written, replaced = strategy_step(scores, before, number, steps + len(states) + 1, context, after)
        states.append(state)
        unmasked.append(written)
        edited.append(replaced)
        numbers.append(number)
        at = accepted_draft([_agrees(draft, state, context.params) for draft in chain], at)
    return RoundEnd(scores, rows, (states[-1],), tuple(states), tuple(numbers), tuple(unmasked), tuple(edited))


def accepted_draft(agree: Sequence[bool], at: int) -> int | None:
    """Return the index of the accepted draft after index `at`, or None if no draft is accepted.

    `agree` is True for drafts that equal the reached state. The test is not exact, so several drafts may equal it. The
    last one is accepted.
    """
    return next((number for number in range(len(agree) - 1, at, -1) if agree[number]), None)


def drafts(end: RoundEnd, steps: int, context: Context, after: Sequence[AfterUnmasking]) -> tuple[Branch, ...]:
    """Return drafts of the strategy's next states, assuming that the model's statistics stay the same.

    The strategy has made `steps` steps so far, including the steps of this round. A step that changes
    nothing, or ends the answer, ends the chain.
    """
    found = list[Branch]()
    anchor = state = end.states[-1]
    if _is_finished(anchor, context):
        return ()
    while len(found) < context.params.lookaheads:
        steps += 1
        state, unmasked, edited = strategy_step(end.scores, state, end.numbers[-1], steps, context, after)
        if (
            not (len(unmasked) or len(edited))
            or _is_finished(state, context)
            or not _fits_anchor(state, anchor, context.params)
        ):
            break
        found.append(state)
    return tuple(found)


def _is_finished(state: Branch, context: Context) -> bool:
    return stop_reason(state, context.ends, finished_blocks=context.params.edits) is not None


def _fits_anchor(draft: Branch, anchor: Branch, params: DecodingParams) -> bool:
    """Return True if `draft` has the same rows on the same prefix in a round of `anchor` as it would have alone. Return
    False if either commits rows. A round commits only the anchor's rows, and with full windows committed rows depend on
    the rows behind them.
    """
    alone = rows_from_branch(draft, draft, params)
    return alone.commit == 0 and _are_same_rows(alone, rows_from_branch(draft, anchor, params))


def _agrees(draft: Branch, state: Branch, params: DecodingParams) -> bool:
    """Return True if the statistics of `draft` are valid for `state`: both sample equal positions of equal rows."""
    if draft.blocks[-1].end != state.blocks[-1].end or not (
        np.array_equal(draft.tokens, state.tokens) and np.array_equal(draft.unmasked, state.unmasked)
    ):
        return False
    return _are_same_rows(rows_from_branch(draft, draft, params), rows_from_branch(state, state, params))


def _are_same_rows(one: BranchRows, other: BranchRows) -> bool:
    return (
        one.commit == other.commit
        and np.array_equal(one.cached, other.cached)
        and np.array_equal(one.order, other.order)
    )
