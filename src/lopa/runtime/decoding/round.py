"""A round of one request: score the branches, find the winner, unmask, and make the next branches
(docs/reference/algorithm.md, section 6 E to K)."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.records import record
from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.decoding.candidates import candidates_from_rows
from lopa.runtime.decoding.constrained import ConstrainedRun, possible_lookaheads, rows_at_first_masked
from lopa.runtime.state.branch import (
    Branch,
    Lookahead,
    masked_among,
    open_among,
    open_span,
    with_first_of_next_block,
    with_tokens,
)
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.state.pipeline import branches_of_round, hands_over, next_anchor, next_lookahead, normalize_branch
from lopa.runtime.strategy import BlockView, BranchView, Candidates, RoundView
from lopa.runtime.strategy.strategy import certainties, constant_limit, identity, share_after_rounds, unmasked_positions

FINISHED_CONFIDENCE = 1.0
"""Confidence of a branch without masked positions. It exceeds every other confidence of the built-in strategies."""


class Scores(NamedTuple):
    """The scores of a round's branches, the anchor last."""

    branches: tuple[Branch, ...]
    """Branches with the strategy's memory after the round."""
    packed: PackedRows
    rows: RowStatistics
    """[C]: statistics after rescoring, without tokens that grammars forbid at first masked positions."""
    view: RoundView
    """Candidates at the sampled positions, and the winner."""
    confidences: tuple[float, ...]
    step: int
    """Number of the strategy's step, which seeds draws."""
    edit_candidates: tuple[Candidates, ...] = ()
    """Candidates of each branch at its editable positions; empty if the decode does not edit."""
    moment: float = math.nan
    """Time at which the branches were scored, on time.perf_counter's clock."""


class Proposals(NamedTuple):
    """The proposals of a forward for one branch."""

    branch: Branch
    """Branch before the step."""
    positions: Int64
    """[n]: sampled positions, ascending."""
    rows: RowStatistics | None
    """[n]: statistics at `positions`, which a grammar reads; None without a grammar."""
    candidates: Candidates
    """[n]: candidates at `positions`."""
    scores: Scores
    number: int
    """Index of the branch in the round from which the statistics come."""
    step: int
    first_rows: RowStatistics | None
    """[1]: statistics at the first position of the next block, if a committed block predicts it; otherwise None."""


@record
class UnmaskedTokens:
    """The tokens that a round unmasked, ordered by the strategy's step, then by block and position."""

    chosen: Bool
    """[sampled positions of each step]: True for the positions that were unmasked."""
    positions: Int64
    tokens: Int64
    logprobs: Float32 | None = None
    probabilities: Float32 | None = None
    """Probabilities of the tokens as the strategy saw them; None if no forward proposed them."""
    entropies: Float32 | None = None
    """Entropies in nats of the rows that proposed them."""

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class EditedTokens:
    """The tokens that a step replaced, ordered by position."""

    positions: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    before: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Tokens before the step."""
    tokens: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Tokens after the step."""
    probabilities: Float32 = field(default_factory=lambda: np.empty(0, np.float32))
    """Probabilities of the new tokens."""

    def __len__(self) -> int:
        return len(self.positions)


NO_POSITIONS, NO_EDITS = np.empty(0, np.int64), EditedTokens()
Tokens = TypeVar("Tokens", UnmaskedTokens, EditedTokens)


class RoundOutcome(NamedTuple):
    """The result of a round for a branch, if it wins."""

    branch: Branch
    """Normalized branch after the round."""
    unmasked: UnmaskedTokens
    left: Int64
    """[n]: positions that may get the next round's lookahead tokens, ascending."""
    proposed: Candidates
    """[n]: candidates at `left`."""
    remasked: Int64 = NO_POSITIONS
    edited: EditedTokens = NO_EDITS
    places: Mapping[int, int] | None = None
    """New position of every position that is still there, if holes changed their lengths; otherwise None."""


AfterUnmasking = Callable[[RoundOutcome, Proposals, Context], RoundOutcome]
"""Function that changes the outcome of a step after it has unmasked some of the proposals."""


class RoundEnd(NamedTuple):
    """The result of a round: one step of the strategy, or several with exact speculative decoding."""

    scores: Scores
    rows: RowStatistics
    """[C]: the model's own statistics, before rescoring and grammars."""
    branches: tuple[Branch, ...]
    """Branches of the next round, the anchor last."""
    states: tuple[Branch, ...]
    """Branch after each step."""
    numbers: tuple[int, ...]
    """Index of the branch whose statistics each step used; the last one is the winner."""
    unmasked: tuple[UnmaskedTokens, ...]
    """Tokens that each step unmasked."""
    edited: tuple[EditedTokens, ...]
    """Tokens that each step edited."""
    remasked: Int64 = NO_POSITIONS
    lookaheads: tuple[Lookahead, ...] = ()
    """Lookahead tokens of the next round, including those of branches that are dropped because another is finished."""
    places: Mapping[int, int] | None = None
    """New positions, like those of RoundOutcome."""


def score_branches(
    branches: tuple[Branch, ...], packed: PackedRows, rows: RowStatistics, step: int, context: Context
) -> Scores:
    """Return the scores of `branches` in step number `step`, from the statistics `rows` [C] of their `packed` rows."""
    branches, rows = _rescore(branches, packed, rows, context)
    if branches[-1].grammar is not None:
        rows = rows_at_first_masked(branches, packed, rows, context.params)
    return scores_from_rows(branches, packed, rows, step, context)


def scores_from_rows(
    branches: tuple[Branch, ...], packed: PackedRows, rows: RowStatistics, step: int, context: Context
) -> Scores:
    """Return the scores of `branches` from statistics `rows` [C] that were rescored and constrained already."""
    positions, offsets = packed.column_positions, None
    if context.params.slides:
        offsets = np.concatenate([own - own[:1] for own in np.split(positions, packed.first_columns[1:])])
    candidates = candidates_from_rows(rows, positions, context, step=step, offsets=offsets)
    proposed: tuple[Candidates, ...] = (candidates,)
    if len(branches) > 1 or len(packed.sampled[0]) < len(positions):
        proposed = tuple([candidates[packed.sampled_columns(number)] for number in range(len(branches))])
    views = [_branch_view(*each) for each in zip(branches, packed.sampled, proposed, strict=True)]
    judge = context.strategy.branch_confidence
    confidences = tuple(
        [float(judge(each, context.params)) if len(each.positions) else FINISHED_CONFIDENCE for each in views]
    )
    view = RoundView(packed.sampled, proposed, confidences.index(max(confidences)))
    edits = tuple(candidates[packed.editable_columns(number)] for number in range(len(packed.editable)))
    return Scores(branches, packed, rows, view, confidences, step, edits, time.perf_counter())


def _branch_view(branch: Branch, positions: Int64, candidates: Candidates) -> BranchView:
    blocks = tuple([(block.start, block.end) for block in branch.active])
    lookahead = None if branch.lookahead is None else branch.lookahead.confidence
    return BranchView(positions, candidates, blocks, lookahead, branch.memory)


def unmask(scores: Scores, number: int, context: Context, after: Sequence[AfterUnmasking] = ()) -> RoundOutcome:
    """Return the result for the branch with index `number` if it wins: unmasked and normalized (section 6 H), and then
    changed by the extensions `after`."""
    branch, positions = scores.branches[number], scores.packed.sampled[number]
    rows = None if branch.grammar is None else scores.rows[scores.packed.sampled_columns(number)]
    candidates, first = scores.view.candidates[number], _first_rows(scores, number, branch)
    proposals = Proposals(branch, positions, rows, candidates, scores, number, scores.step, first)
    outcome = _outcome(proposals, context, after)
    if not context.params.lookaheads:
        return outcome
    chosen, proposed = outcome.branch, outcome.proposed
    may = ~outcome.unmasked.chosen & open_among(chosen, positions, context.params)
    if chosen.grammar is not None:
        may &= possible_lookaheads(chosen, chosen.grammar, positions, proposed)
    left = may.nonzero()[0]
    return outcome._replace(left=positions[left], proposed=proposed[left])


def _first_rows(scores: Scores, number: int, state: Branch) -> RowStatistics | None:
    """Return the statistics [1] at the first position of the next block, which a committed block of branch `number`
    predicts, or None."""
    column = scores.packed.first_columns[number]
    return scores.rows[column : column + 1] if scores.packed.kept_columns and hands_over(state) else None


def spawn(
    anchor: Branch, outcome: RoundOutcome, count: int, context: Context
) -> tuple[tuple[Branch, ...], tuple[Lookahead, ...]]:
    """Return the branches of the next round (section 6 J and K), at most `count` lookaheads by rank and then `anchor`,
    and the lookahead tokens.

    The published loop makes the anchor twice if no position is left for a lookahead (quirk 2).
    """
    lookaheads = _lookaheads(outcome, count, context)
    branches = [next_lookahead(anchor, lookahead, context) for lookahead in lookaheads]
    if anchor.grammar is not None:
        branches = [normalize_branch(branch, context) for branch in branches]
    if not branches and context.params.reference and context.params.lookaheads:
        branches = [anchor]
    return branches_of_round((*branches, anchor), context), lookaheads


def branch_again(scores: Scores, rows: RowStatistics, outcome: RoundOutcome, count: int, context: Context) -> RoundEnd:
    """Return the end of a round whose winner has this `outcome`: the anchor and `count` lookaheads continue."""
    branches, lookaheads = spawn(next_anchor(outcome.branch), outcome, count, context)
    return RoundEnd(
        scores,
        rows,
        branches,
        branches[-1:],
        (scores.view.winner,),
        (outcome.unmasked,),
        (outcome.edited,),
        outcome.remasked,
        lookaheads,
        outcome.places,
    )


def strategy_step(
    scores: Scores, state: Branch, number: int, step: int, context: Context, after: Sequence[AfterUnmasking] = ()
) -> tuple[Branch, UnmaskedTokens, EditedTokens]:
    """Return the state after `state` in step `step` of the strategy alone, and the tokens that it unmasks and edits.

    The statistics come from branch `number`. That branch is `state` itself or an earlier state from which it was
    drafted, so positions that `state` has unmasked since are not sampled again.
    """
    packed, strategy = scores.packed, context.strategy
    left = np.flatnonzero(masked_among(state, packed.sampled[number]))
    positions, rows = packed.sampled[number][left], scores.rows[packed.sampled_columns(number)][left]
    if strategy.rescore is not identity:
        rows, memory = strategy.rescore(rows, positions, state.memory, context.params)
        state = state.changed(memory=memory)
    if strategy.rescore is identity and (step == scores.step or not context.params.temperature):
        candidates = scores.view.candidates[number][left]
    else:
        candidates = candidates_from_rows(rows, positions, context, step=step)
    first = _first_rows(scores, number, state)
    outcome = _outcome(Proposals(state, positions, rows, candidates, scores, number, step, first), context, after)
    return branches_of_round((next_anchor(outcome.branch),), context)[0], outcome.unmasked, outcome.edited


def joined(steps: Sequence[Tokens]) -> Tokens:
    """Return the tokens of several steps, at least one, as one record, in the order of the steps."""
    if len(steps) == 1:
        return steps[0]
    columns = {each.name: [getattr(step, each.name) for step in steps] for each in fields(steps[0])}
    known: dict[str, Any] = {
        name: None if parts[0] is None else np.concatenate(parts) for name, parts in columns.items()
    }
    return replace(steps[0], **known)


def _rescore(
    branches: tuple[Branch, ...], packed: PackedRows, rows: RowStatistics, context: Context
) -> tuple[tuple[Branch, ...], RowStatistics]:
    """Return the branches with the strategy's memory after the round, and the rescored rows (stage 1)."""
    rescore = context.strategy.rescore
    if rescore is identity:
        return branches, rows
    result, after = rows.copy(), []
    for number, (branch, positions) in enumerate(zip(branches, packed.sampled, strict=True)):
        own = packed.sampled_columns(number)
        rescored, memory = rescore(rows[own], positions, branch.memory, context.params)
        put_rows(result, own, rescored)
        after.append(branch.changed(memory=memory))
    return tuple(after), result


def _outcome(proposals: Proposals, context: Context, after: Sequence[AfterUnmasking]) -> RoundOutcome:
    outcome = _unmask_branch(proposals, context)
    for change in after:
        outcome = change(outcome, proposals, context)
    return outcome


def _unmask_branch(proposals: Proposals, context: Context) -> RoundOutcome:
    """Return the result of a step: what the strategy unmasks, of what the grammar allows.

    All sampled positions are `left`.
    """
    branch, positions, candidates = proposals.branch, proposals.positions, proposals.candidates
    if proposals.first_rows is not None:
        longer, first = _with_first_of_next_block(branch, proposals.first_rows, proposals.step, context)
        return RoundOutcome(longer, first, positions, candidates)
    if branch.grammar is None or proposals.rows is None or not len(positions):
        chosen = _choose(proposals, candidates, None, context)
    else:
        run = ConstrainedRun(branch, branch.grammar, positions, proposals.rows, context.params)
        while True:
            chosen = _choose(proposals, candidates, run.may_unmask(candidates), context)
            if not run.extend(candidates, chosen):
                break
            candidates = candidates_from_rows(run.rows, positions, context, step=proposals.step)
    places = chosen.nonzero()[0]
    unmasked = _unmasked_tokens(positions[places], candidates[places], chosen)
    written = with_tokens(branch, unmasked.positions, unmasked.tokens, unmasked.logprobs, context)
    return RoundOutcome(normalize_branch(written, context), unmasked, positions, candidates)


def _choose(proposals: Proposals, candidates: Candidates, allowed: Bool | None, context: Context) -> Bool:
    """Return which of the proposed and `allowed` [n] positions the strategy unmasks, [n]. None allows all."""
    params, strategy, branch, positions = context.params, context.strategy, proposals.branch, proposals.positions
    masked = ~branch.unmasked[positions]
    if allowed is not None:
        masked &= allowed
    blocks = branch.active
    is_whole = params.sub_block >= max([block.end - block.start for block in blocks], default=0)
    at_once = is_whole and strategy.takes_all_certain and not params.unmask_first_masked
    is_certain = certainties(candidates, params) > constant_limit(params)
    chosen = masked & is_certain if at_once else np.zeros(len(positions), np.bool_)
    for block in blocks:
        if at_once and not block.fully_activated:
            continue  # it has no minimum
        own = slice(*positions.searchsorted(open_span(branch, block, params)).tolist())
        minimum = share_after_rounds(block.rounds, params)
        if at_once and (np.count_nonzero(chosen[own]) >= minimum or not np.count_nonzero(masked[own])):
            continue
        view = BlockView(
            positions=positions[own],
            candidates=candidates[own],
            masked=masked[own],
            fully_activated=block.fully_activated,
            rounds=block.rounds,
            leads=not len(branch.masked) or branch.masked.item(0) >= block.start,
            memory=branch.memory,
            round=proposals.scores.view,
            branch=proposals.number,
        )
        chosen[own] = unmasked_positions(view, strategy, params)
    return chosen


def _with_first_of_next_block(
    branch: Branch, rows: RowStatistics, step: int, context: Context
) -> tuple[Branch, UnmaskedTokens]:
    """Return `branch` with the first token of the next block, which the last row of a committed block proposes.

    The token is greedy or drawn like any other, but needs no threshold (Fast-dLLM v2's rule).
    """
    position = np.array([branch.blocks[-1].end])
    candidate = candidates_from_rows(rows, position, context, step=step)
    if branch.grammar is not None:
        run = ConstrainedRun(branch, branch.grammar, position, rows, context.params)
        while run.extend(candidate, run.may_unmask(candidate)):
            candidate = candidates_from_rows(run.rows, position, context, step=step)
    unmasked = _unmasked_tokens(position, candidate, np.zeros(0, np.bool_))
    longer = with_first_of_next_block(branch, unmasked.tokens, unmasked.logprobs, context)
    return normalize_branch(longer, context), unmasked


def _unmasked_tokens(positions: Int64, candidates: Candidates, chosen: Bool) -> UnmaskedTokens:
    return UnmaskedTokens(
        chosen, positions, candidates.tokens, candidates.logprobs, candidates.probabilities, candidates.entropies
    )


def _lookaheads(outcome: RoundOutcome, count: int, context: Context) -> tuple[Lookahead, ...]:
    """Return at most `count` lookahead tokens, best first, at the remaining positions that the strategy chooses."""
    if not count or not len(outcome.left):
        return ()
    candidates = outcome.proposed
    view = _branch_view(outcome.branch, outcome.left, candidates)
    best = context.strategy.lookaheads(view, count, context.params)
    return tuple(
        Lookahead(
            rank,
            int(outcome.left[i]),
            int(candidates.tokens[i]),
            float(candidates.confidences[i]),
            None if candidates.logprobs is None else float(candidates.logprobs[i]),
            float(candidates.probabilities[i]),
            math.nan if candidates.entropies is None else float(candidates.entropies[i]),
        )
        for rank, i in enumerate(best)
    )
