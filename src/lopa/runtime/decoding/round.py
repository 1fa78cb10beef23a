"""A round of one request: score the branches, pick the winner, unmask, spawn (docs/reference/algorithm.md, section 6 E
to K)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.decoding.candidates import candidates_from_rows
from lopa.runtime.decoding.constrained import ConstrainedRun, may_stand, rows_at_first_masked
from lopa.runtime.decoding.remask import judged_probabilities, remasked_branch
from lopa.runtime.state.branch import Branch, Lookahead, with_first_of_next_block, with_tokens
from lopa.runtime.state.context import Context
from lopa.runtime.state.pipeline import branches_of_round, hands_over, next_anchor, next_lookahead, settled
from lopa.runtime.state.windows import Windows, masked_among, open_among, open_span
from lopa.runtime.strategy import BlockView, Candidates, RoundView
from lopa.runtime.strategy.strategy import identity, unmasked_positions

FINISHED_CONFIDENCE = 1.0
"""Confidence of a branch with nothing left to unmask: beats every other."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The branches of a round by the forward's answers, the anchor last."""

    branches: tuple[Branch, ...]
    """With what the strategy remembers of them after the round."""
    windows: Windows
    rows: RowStatistics
    """[B, Q], as rescored, and without what grammars forbid at first masked positions."""
    view: RoundView
    """Candidates that were made of them, and the winner."""
    confidences: tuple[float, ...]
    judged: Float32
    """[S]: probabilities of the anchor's judged tokens to rows that do not see them."""
    step: int
    """Number of the strategy's step, which seeds draws."""


@dataclass(frozen=True)
class Fills:
    """What a round unmasked, step by step of the strategy, and of each block by block in the order of positions."""

    chosen: Bool
    """[positions that were asked about]"""
    positions: Int64
    tokens: Int64
    logprobs: Float32 | None = None
    probabilities: Float32 | None = None
    """Probabilities of the tokens as the strategy saw them; None where no forward proposed them."""
    entropies: Float32 | None = None
    """In nats, of the rows that they come from."""

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round makes of a branch if it wins."""

    branch: Branch
    """Settled, with what was unmasked and without what was remasked."""
    fills: Fills
    left: Int64
    """[n]: positions at which the next round's lookaheads may be written, ascending."""
    proposed: Candidates
    """[n], for these."""
    remasked: Int64


@dataclass(frozen=True, slots=True)
class Spawned:
    """The branches of the next round."""

    branches: tuple[Branch, ...]
    lookaheads: tuple[Lookahead, ...]
    """Their lookahead tokens, those of branches that a finished one makes needless included."""


@dataclass(frozen=True, slots=True)
class Proposals:
    """What a forward proposed for one branch."""

    positions: Int64
    """[n]: positions that it was asked about, ascending."""
    rows: RowStatistics
    """[n]"""
    candidates: Candidates
    """[n]"""
    view: RoundView
    number: int
    """Index of the branch in the round."""
    step: int
    first_rows: RowStatistics | None = None
    """[1], about the first position of the next block, where a block is committed that hands it over; else None."""


def score_branches(
    branches: tuple[Branch, ...], windows: Windows, rows: RowStatistics, step: int, context: Context
) -> Scores:
    """Return the scores of `branches` from the statistics `rows` [B, Q] of their `windows`, in step number `step`."""
    branches, rows = _rescored(branches, windows, rows, context)
    allowed = rows
    if branches[-1].grammar is not None:
        allowed = rows_at_first_masked(branches, windows, rows, context.plan)
    scores = scores_from_rows(branches, windows, allowed, step, context)
    if not len(windows.judged):
        return scores
    return replace(scores, judged=judged_probabilities(windows, rows, branches[-1]))


def scores_from_rows(
    branches: tuple[Branch, ...], windows: Windows, rows: RowStatistics, step: int, context: Context
) -> Scores:
    """Return the scores of `branches` from statistics `rows` [B, Q] that no strategy or grammar changes any more."""
    candidates = candidates_from_rows(rows, windows.wanted, context, step=step)
    asked = tuple(
        candidates[number, windows.kept : windows.kept + len(positions)]
        for number, positions in enumerate(windows.asked)
    )
    confidences = tuple(_branch_confidence(each.confidences) for each in asked)
    view = RoundView(windows.asked, asked, int(np.argmax(confidences)))
    return Scores(branches, windows, rows, view, confidences, np.empty(0, np.float32), step)


def _branch_confidence(confidences: Float32) -> float:
    """Return the mean confidence over all masked positions of a branch before any is unmasked (section 6 E)."""
    return float(confidences.mean()) if len(confidences) else FINISHED_CONFIDENCE


def unmask(scores: Scores, number: int, context: Context) -> Outcome:
    """Return what becomes of the branch with index `number` if it wins: unmasked, settled, remasked (section 6 H)."""
    branch, windows = scores.branches[number], scores.windows
    positions = windows.asked[number]
    rows = scores.rows[number, windows.kept : windows.kept + len(positions)]
    first = scores.rows[number, :1] if windows.kept and hands_over(branch) else None
    proposals = Proposals(positions, rows, scores.view.candidates[number], scores.view, number, scores.step, first)
    chosen, fills, proposed = _unmasked(branch, proposals, context)
    remasked = np.empty(0, np.int64)
    if context.plan.remasks:
        written = fills.positions if branch.lookahead is None else np.append(fills.positions, branch.lookahead.position)
        chosen, remasked = remasked_branch(chosen, written, windows.judged, scores.judged, context)
    may = ~fills.chosen & open_among(chosen, positions, context.plan)
    if chosen.grammar is not None:
        may &= may_stand(chosen, chosen.grammar, positions, proposed)
    left = np.flatnonzero(may)
    return Outcome(chosen, fills, positions[left], proposed[left], remasked)


def spawn(anchor: Branch, outcome: Outcome, count: int, context: Context) -> Spawned:
    """Return the branches of the next round (section 6 J and K): at most `count` lookaheads by rank, then `anchor`.

    The published loop makes the anchor twice where nothing is left to look ahead at (quirk 2).
    """
    lookaheads = _lookaheads(outcome, count)
    branches = [next_lookahead(outcome.branch, lookahead, context) for lookahead in lookaheads]
    if anchor.grammar is not None:
        branches = [settled(branch, context) for branch in branches]
    if not branches and context.plan.reference and context.plan.lookaheads:
        branches = [anchor]
    return Spawned(branches_of_round((*branches, anchor), context), lookaheads)


def strategy_step(scores: Scores, state: Branch, number: int, step: int, context: Context) -> tuple[Branch, Fills]:
    """Return what the strategy alone makes of `state` in its step `step`, by the answers to branch `number`, and what
    it unmasks.

    That branch is `state`, or one before it from whose answers it was drafted: about what `state` has unmasked since,
    it is not asked.
    """
    windows, strategy = scores.windows, context.strategy
    left = np.flatnonzero(masked_among(state, windows.asked[number]))
    positions, rows = windows.asked[number][left], scores.rows[number, windows.kept + left]
    if strategy.rescore is not identity:
        rows, memory = strategy.rescore(rows, positions, state.memory, context.plan)
        state = replace(state, memory=memory)
    if strategy.rescore is identity and (step == scores.step or not context.plan.temperature):
        candidates = scores.view.candidates[number][left]
    else:
        candidates = candidates_from_rows(rows, positions, context, step=step)
    first = scores.rows[number, :1] if windows.kept and hands_over(state) else None
    proposals = Proposals(positions, rows, candidates, scores.view, number, step, first)
    after, fills, _ = _unmasked(state, proposals, context)
    return branches_of_round((next_anchor(after),), context)[0], fills


def joined_fills(steps: Sequence[Fills]) -> Fills:
    """Return the fills of several steps, at least one, as those of a round; `chosen` is the last step's."""
    if len(steps) == 1:
        return steps[0]
    return Fills(
        steps[-1].chosen,
        np.concatenate([each.positions for each in steps]),
        np.concatenate([each.tokens for each in steps]),
        _joined([each.logprobs for each in steps]),
        _joined([each.probabilities for each in steps]),
        _joined([each.entropies for each in steps]),
    )


def _joined(parts: list[Float32 | None]) -> Float32 | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if len(given) == len(parts) else None


def _rescored(
    branches: tuple[Branch, ...], windows: Windows, rows: RowStatistics, context: Context
) -> tuple[tuple[Branch, ...], RowStatistics]:
    """Return the branches with what the strategy remembers after the round, and the rows to decide by (stage 1)."""
    rescore = context.strategy.rescore
    if rescore is identity:
        return branches, rows
    result, after = rows.copy(), []
    for number, (branch, positions) in enumerate(zip(branches, windows.asked, strict=True)):
        own = (number, slice(windows.kept, windows.kept + len(positions)))
        said, memory = rescore(rows[own], positions, branch.memory, context.plan)
        put_rows(result, own, said)
        after.append(replace(branch, memory=memory))
    return tuple(after), result


def _unmasked(branch: Branch, proposals: Proposals, context: Context) -> tuple[Branch, Fills, Candidates]:
    """Return `branch` settled with what a step unmasks, the fills, and the candidates [n] they were chosen from."""
    positions, candidates = proposals.positions, proposals.candidates
    if proposals.first_rows is not None:
        return *_handed_over(branch, proposals.first_rows, proposals.step, context), candidates
    if branch.grammar is None or not len(positions):
        chosen = _chosen(branch, proposals, candidates, np.ones(len(positions), np.bool_), context)
    else:
        run = ConstrainedRun(branch, branch.grammar, positions, proposals.rows, context.plan)
        while True:
            chosen = _chosen(branch, proposals, candidates, run.may_unmask(candidates), context)
            if not run.extend(candidates, chosen):
                break
            candidates = candidates_from_rows(run.rows, positions, context, step=proposals.step)
    fills = _fills(positions[chosen], candidates[chosen], chosen)
    written = with_tokens(branch, fills.positions, fills.tokens, fills.logprobs, context)
    return settled(written, context), fills, candidates


def _chosen(branch: Branch, proposals: Proposals, candidates: Candidates, allowed: Bool, context: Context) -> Bool:
    """Return which of the proposed positions [n] the strategy unmasks, [n], block by block, of those `allowed` [n]."""
    plan, positions = context.plan, proposals.positions
    chosen = np.zeros(len(positions), np.bool_)
    masked = ~branch.unmasked[positions] & allowed
    places = [slice(*np.searchsorted(positions, open_span(branch, block, plan))) for block in branch.active]
    views = [
        BlockView(
            positions=positions[own],
            candidates=candidates[own],
            masked=masked[own],
            complete=block.complete,
            rounds=block.rounds,
            leads=bool(branch.unmasked[: block.start].all()),
            memory=branch.memory,
            round=proposals.view,
            branch=proposals.number,
        )
        for block, own in zip(branch.active, places, strict=True)
    ]
    for own, view in zip(places, views, strict=True):
        chosen[own] = unmasked_positions(view, context.strategy, plan)
    return chosen


def _handed_over(branch: Branch, rows: RowStatistics, step: int, context: Context) -> tuple[Branch, Fills]:
    """Return `branch` with the first token of the block to come, which the last row of a committed block proposes.

    It is greedy or drawn like any other, but without a threshold (Fast-dLLM v2's rule).
    """
    position = np.array([branch.blocks[-1].end])
    candidate = candidates_from_rows(rows, position, context, step=step)
    if branch.grammar is not None:
        run = ConstrainedRun(branch, branch.grammar, position, rows, context.plan)
        while run.extend(candidate, run.may_unmask(candidate)):
            candidate = candidates_from_rows(run.rows, position, context, step=step)
    fills = _fills(position, candidate, np.zeros(0, np.bool_))
    longer = with_first_of_next_block(branch, fills.tokens, fills.logprobs, context)
    return settled(longer, context), fills


def _fills(positions: Int64, candidates: Candidates, chosen: Bool) -> Fills:
    return Fills(
        chosen, positions, candidates.tokens, candidates.logprobs, candidates.probabilities, candidates.entropies
    )


def _lookaheads(outcome: Outcome, count: int) -> tuple[Lookahead, ...]:
    """Return the `count` most confident of the positions left, best first, equal ones by position."""
    candidates = outcome.proposed
    best = np.argsort(-candidates.confidences, kind="stable")[:count]
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
