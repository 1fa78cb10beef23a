"""Stage 7 on a branch: unmasked positions that are verified again, their probabilities, and the positions to remask."""

import numpy as np

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.extension import Extension, LoopState
from lopa.runtime.decoding.round import Proposals, RoundEnd, RoundOutcome
from lopa.runtime.state.answer_state import AnswerState
from lopa.runtime.state.branch import Block, BlockState, Branch, final_length, is_end, with_remasked
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.strategy import RemaskView
from lopa.runtime.strategy.strategies import BEFORE_FIRST_STEP, remask_limit


def remasking() -> Extension:
    """Return the extension that masks improbable unmasked positions again (WINO)."""
    return Extension(unmasked=_remasked, answer=with_finished_text)


def _remasked(outcome: RoundOutcome, proposals: Proposals, context: Context) -> RoundOutcome:
    scores, before, written = proposals.scores, proposals.branch, outcome.unmasked.positions
    if before.lookahead is not None:
        written = np.append(written, before.lookahead.position)
    probabilities = remaskable_probabilities(scores.packed, scores.rows, scores.branches[-1])
    branch, remasked = remask_branch(outcome.branch, written, scores.packed.remaskable, probabilities, context)
    return outcome._replace(branch=branch, remasked=remasked)


def with_finished_text(loop: LoopState, answer: AnswerState, _: RoundEnd | None) -> AnswerState:
    """Return `answer` with text of finished blocks only, which later rounds do not change, unless decoding has
    ended."""
    if answer.stop_reason in ("eos", "length"):
        return answer
    return answer._replace(final=min(answer.final, final_length(loop.anchor)))


def remaskable_positions(anchor: Branch, context: Context) -> Int64:
    """Return the unmasked positions of the answer, [S] ascending, that a round may remask.

    They do not depend on what the round unmasks. An end of text is never among them, since the rows behind it may have
    been dropped.
    """
    params = context.params
    if context.strategy.remask is None or not params.remasks or anchor.remasked >= params.remask_limit:
        return np.empty(0, np.int64)
    open_now = np.zeros(len(anchor.tokens), np.bool_)
    for block in anchor.active:
        open_now[block.start : block.end] = remask_limit(_accepted_before(block)) > 0
    open_now[: anchor.layout.prompt] = False
    return np.flatnonzero(open_now & anchor.unmasked & ~is_end(anchor.tokens, context.ends))


def remaskable_probabilities(packed: PackedRows, rows: RowStatistics, anchor: Branch) -> Float32:
    """Return the probabilities [S] of the tokens at the remaskable positions, from a round's statistics `rows` [C].

    A token that is not among the K best has probability 0.
    """
    received = rows[packed.remaskable_columns]
    found = received.topk_ids == anchor.tokens[packed.remaskable][:, None]
    known = np.where(found, np.exp(received.topk_logprobs), np.float32(0))
    probabilities: Float32 = known.sum(axis=-1, dtype=np.float32)
    return probabilities


def remask_branch(
    winner: Branch, written: Int64, remaskable: Int64, probabilities: Float32, context: Context
) -> tuple[Branch, Int64]:
    """Return the `winner` of a round after its strategy remasked positions, and these positions, block by block.

    `written` are the positions that the round unmasked. `probabilities` [S] belong to the positions `remaskable` [S].
    """
    remask = context.strategy.remask
    if remask is None:
        return winner, np.empty(0, np.int64)
    found: list[Int64] = []
    blocks, left = [], context.params.remask_limit - winner.remasked
    for block in winner.blocks:
        accepted = int(np.count_nonzero((block.start <= written) & (written < block.end)))
        if block.state is BlockState.ACTIVE:
            own = slice(*np.searchsorted(remaskable, (block.start, block.end)))
            view = RemaskView(probabilities[own], accepted, _accepted_before(block), left)
            found.append(remaskable[own][remask(view, context.params)])
            left -= len(found[-1])
            block = block._replace(accepted=accepted)
        blocks.append(block)
    positions = np.concatenate([np.empty(0, np.int64), *found])
    after = winner.changed(blocks=tuple(blocks), remasked=winner.remasked + len(positions))
    return with_remasked(after, positions, context), positions


def _accepted_before(block: Block) -> int:
    return BEFORE_FIRST_STEP if block.accepted is None else block.accepted
