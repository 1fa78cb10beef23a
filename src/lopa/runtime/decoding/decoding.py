"""The decoding loop of one request: LoPA (docs/reference/algorithm.md, section 6), with D2F, threshold and vanilla as
special cases.

It works on token ids, without tokenizer, text or files.
"""

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from lopa.runtime.contract import Float32, Int64, Statistics
from lopa.runtime.contract.candidate_list import TokenLogprob
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.contract.row_statistics import RowStatistics, check_statistics, fill_with_kept_row
from lopa.runtime.decoding.branch_budget import BranchBudget, tokens_gained
from lopa.runtime.decoding.candidate_record import CandidateRecord
from lopa.runtime.decoding.edit import join_edited
from lopa.runtime.decoding.growing_holes import growing_holes, resize, rows_without_expansion
from lopa.runtime.decoding.hole_seams import rows_at_seams
from lopa.runtime.decoding.remask import remaskable_positions
from lopa.runtime.decoding.round import RoundOutcome, join_unmasked, score_branches, scores_from_rows, spawn, unmask
from lopa.runtime.decoding.speculation import drafts, verify
from lopa.runtime.decoding.step import Step
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.batch import batch_from_rows, columns_from_statistics
from lopa.runtime.state.branch import (
    Branch,
    StopReason,
    answer_ids,
    final_length,
    first_branch,
    is_end,
    published_stop_reason,
    stop_reason,
    unmasked_length,
    with_tokens,
)
from lopa.runtime.state.branch_grammar import BranchGrammar
from lopa.runtime.state.context import Model, context_from_model
from lopa.runtime.state.holes import Holes
from lopa.runtime.state.layout import layout_of_holes, layout_of_prompt
from lopa.runtime.state.packed_rows import PackedRows, check_rows, pack_rows
from lopa.runtime.state.pipeline import branches_of_round, hands_over, next_anchor
from lopa.runtime.state.shadow_rows import with_shadow_rows
from lopa.runtime.state.shared_rows import SharingTest, with_shared_rows
from lopa.runtime.strategy import Candidates

__all__ = ["Decoding", "SharingTest", "Step", "StopReason"]


class Forwards(Protocol):
    """The part of a session that a decode needs (lopa.runtime.sessions.session)."""

    @property
    def device(self) -> str:
        """Name of the device."""

    def run(self, batch: PackedBatch) -> Statistics:
        """Run every window against its request's prefix, without committing."""

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix."""

    def shorten(self, request: int, count: int) -> None:
        """Drop the request's committed rows behind the first `count`."""


class Decoding:
    """The state of one request between steps, and the step function.

    `stop_reason` is None until decoding has ended. The caller releases the request's cache in the session.
    """

    def __init__(
        self,
        session: Forwards,
        request: int,
        prompt: Int64,
        plan: DecodingPlan,
        model: Model,
        budget: BranchBudget | None = None,
        prompt_row: RowStatistics | None = None,
        cached: int = 0,
        sharing: SharingTest | None = None,
        grammar: BranchGrammar | None = None,
        holes: Holes | None = None,
    ) -> None:
        """Begin with `prompt` [length], at least one token; `request` is an unused number in the session.

        `budget`, new for every request, chooses the number of branches; without it the plan does. The rows of the first
        `cached` positions, finished blocks of the prompt, are in the session already. The first round computes and
        commits the other rows of such blocks. If there are none, and the last row predicts a masked position,
        `prompt_row` [K] holds the last row's statistics. `sharing` decides whether equal rows of several branches are
        computed once; None means never. The answer satisfies `grammar`. With `holes`, `prompt` is the whole text,
        and the holes in it are filled.
        """
        self._session, self._budget, self._sharing = session, budget, sharing
        self._context = context = context_from_model(plan, model)
        self.kept_row = prompt_row
        """[K]: statistics of the last committed row of finished blocks."""
        self.request = request
        self.prompt_length = len(prompt) if holes is None else holes.holes[0][0]
        ends = model.special_tokens.ends
        self._growing = growing_holes(holes, ends) if holes is not None and holes.grows else None
        if self._growing is not None:
            self._context = context = replace(context, holes_grow=True)
            prompt, holes = self._growing.holes.ids, self._growing.holes
        self._lengths: tuple[Holes, ...] = () if holes is None else tuple(holes.lengths)
        self.steps = 0
        """Number of rounds."""
        self._strategy_steps = 0
        """Logical step counter that seeds sampling. Rounds that sample no position do not count, because a round that
        only caches a prompt's rows is skipped if they are cached already."""
        self.window_tokens = 0
        """Maximum number of generated positions so far; the paper counts these."""
        self.stop_reason: StopReason | None = None
        self._stopped_early_at: int | None = None
        """Position of the end of text at which LLaDA2.0's loop stopped within a block, possibly in the prompt."""
        self._proposed: tuple[Int64, Candidates] | None = None
        """Masked positions [n] that the last round computed, and the best tokens there."""
        self.drafted: Candidates | None = None
        """[n]: tokens that `write_draft` wrote."""
        self._seconds: dict[str, float] = {}
        self._lap_began = 0.0
        self._record = CandidateRecord(plan.top_logprobs, context.unwritten) if plan.top_logprobs else None
        if holes is None:
            layout = layout_of_prompt(len(prompt), plan, context.prediction_shift)
        else:
            layout = layout_of_holes(holes.holes, plan, context.prediction_shift, in_turn=holes.in_turn)
        self._kept_for = None if prompt_row is None else layout.first
        """Position that the kept row predicts."""
        self._cached = np.arange(cached)
        """[P]: positions of the rows in the request's prefix in the session, in their order."""
        first = first_branch(prompt, layout, context, cached=cached)
        final_grammar = grammar if plan.edits else None
        shorter = [
            first_branch(each.ids, layout_of_holes(each.holes, plan, context.prediction_shift, in_turn=False), context)
            for each in self._lengths[:-1]
        ]
        anchor = replace(first, grammar=grammar, final_grammar=final_grammar)
        self._branches = branches_of_round((*shorter, anchor), context)
        self._update_end((self.anchor,))

    def step(self) -> Step:
        """Run one round: verify all branches in one forward, unmask positions of the winner, and branch again."""
        packed = self.open_round()
        batch = batch_from_rows([packed], [self.request], [self._context.plan.logits_temperature])
        statistics = self._session.run(batch)
        (rows,) = columns_from_statistics(statistics, [packed])
        return self.finish_round(packed, rows, statistics.split)

    def open_round(self) -> PackedRows:
        """Return the rows whose statistics `finish_round` takes. Nothing is unmasked yet.

        Call it before their forward, because the session drops cached rows that these rows do not use.
        """
        self._seconds, self._lap_began = {}, time.perf_counter()
        packed, anchor, context = self._packed_rows(), self.anchor, self._context
        if context.plan.remasks:
            remaskable = remaskable_positions(anchor, context)
            packed = with_shadow_rows(packed, anchor, remaskable, context) if len(remaskable) else packed
        if self._sharing is not None:
            packed = with_shared_rows(packed, self._sharing)
        check_rows(
            packed,
            prediction_shift=context.prediction_shift,
            unseen=anchor.layout.unseen,
            kept_for=self._kept_for,
        )
        if packed.prefix < len(self._cached):
            self._session.shorten(self.request, packed.prefix)
            self._cached = packed.cached
        self._lap("windows")
        return packed

    def _packed_rows(self) -> PackedRows:
        """Return the rows of the round, which use the first rows of the cache. Temporarily cached rows are computed
        again if they do not match the rows that the round needs. A grammar can cause that: it may write the first
        position of the next sub-block, or remask an end of text, which brings positions back.
        """
        for anew in (False, True):
            packed = pack_rows(self._branches, self._context, anew=anew)
            if np.array_equal(self._cached[: packed.prefix], packed.cached):
                return packed
        raise RuntimeError(
            f"the cache holds the rows of {len(self._cached)} positions, expected those of the {packed.prefix} that a "
            "round needs (this is a bug in lopa, please report it)"
        )

    def finish_round(self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Process the statistics `rows` [C] of a round's `packed` rows: score, commit, unmask, make the next branches.

        `split` is the forward's time by device, for the returned step. Call this before the forward is released.
        Raises NonFiniteAnswerError for statistics that are not finite; the state is then unchanged.
        """
        self._lap("forward")
        self.steps += 1
        check_statistics(rows, self._context.vocab_size, device=self._session.device, step=self.steps)
        rows = fill_with_kept_row(rows, self.kept_row, packed.from_kept_row)
        if self._growing is not None:
            rows = rows_without_expansion(packed, rows, self._growing, self._context)
        if self._lengths and self._lengths[0].seam_tokens:
            per_branch = self._lengths if self._compares_lengths else self._lengths[-1:] * len(self._branches)
            rows = rows_at_seams(packed, rows, per_branch, self._context.plan)
        is_speculative = self._context.plan.speculative and not self._compares_lengths
        return (self._speculative_round if is_speculative else self._round)(packed, rows, split)

    def _round(self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Unmask positions of the winning branch, and look ahead from there."""
        context = self._context
        scores = score_branches(self._branches, packed, rows, self._strategy_steps + 1, context)
        self._strategy_steps += self._samples(packed)
        self._lap("select")

        winner = scores.view.winner
        if self._compares_lengths:
            self._lengths = self._lengths[winner : winner + 1]
        self._commit(packed, rows, winner)
        self._lap("commit")

        if self._budget is None:
            outcome, places = self._with_resized_holes(unmask(scores, winner, context))
            anchor = next_anchor(outcome.branch)
            count = 0 if context.plan.speculative else context.plan.lookaheads
        else:
            outcomes = [unmask(scores, number, context) for number in range(len(scores.branches))]
            gains = [tokens_gained(*pair, context.ends) for pair in zip(scores.branches, outcomes, strict=True)]
            outcome, places = outcomes[winner], None
            anchor = next_anchor(outcome.branch)
            count = self._budget.lookaheads(scores.confidences, gains, anchor, context)
        spawned = spawn(anchor, outcome, count, context)
        self._branches = spawned.branches
        self._proposed = scores.view.positions[winner], scores.view.candidates[winner]
        self._update_end((self.anchor,))
        if context.is_llada2 and context.plan.eos_early_stop and not context.plan.edits:
            self._stop_early(outcome.unmasked.tokens)
        if self._record is not None:
            written = [*outcome.unmasked.positions.tolist(), *outcome.edited.positions.tolist()]
            if context.plan.anytime:
                self._record.add(winner, scores.view.positions[winner].tolist(), packed, rows)
            self._record.accept(scores.branches[winner])
            self._record.add(winner, written, packed, rows)
            self._record.propose(winner, spawned.lookaheads, packed, rows)
            if places is not None:
                self._record.move(places)
            self._record.accept(self.anchor)  # a lookahead token that completes the answer
        self._lap("spawn")
        return Step(
            self.steps,
            scores.branches,
            packed,
            scores.confidences,
            winner,
            outcome.unmasked,
            spawned.lookaheads,
            self._seconds,
            split,
            outcome.remasked,
            scores.view.candidates,
            np.full(len(outcome.unmasked.positions), winner),
            None if self.stop_reason is None else self.anchor.lookahead,
            outcome.edited,
        )

    def _speculative_round(self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Follow the strategy through the computed states, and draft its next states."""
        context, branches = self._context, self._branches
        self._commit(packed, rows, 0)  # a round with drafts commits nothing
        self._lap("commit")
        scores = scores_from_rows(branches, packed, rows, self._strategy_steps + 1, context)
        verified = verify(branches, scores, self._strategy_steps, context)
        self._strategy_steps += len(verified.states) * self._samples(packed)
        self._lap("select")
        self._branches = verified.states[-1:]
        self._proposed = scores.view.positions[verified.numbers[-1]], scores.view.candidates[verified.numbers[-1]]
        self._update_end(verified.states)
        if self.stop_reason is None:
            self._branches = (*drafts(verified, scores, self._strategy_steps, context), *self._branches)
        if self._record is not None:
            if context.plan.anytime:
                self._record.add(verified.numbers[-1], self._proposed[0].tolist(), packed, rows)
            for number, unmasked, edited in zip(verified.numbers, verified.unmasked, verified.edited, strict=True):
                self._record.add(number, [*unmasked.positions.tolist(), *edited.positions.tolist()], packed, rows)
        self._lap("spawn")
        return Step(
            self.steps,
            branches,
            packed,
            scores.confidences,
            verified.numbers[-1],
            join_unmasked(verified.unmasked),
            (),
            self._seconds,
            split,
            candidates=scores.view.candidates,
            unmasked_branches=np.repeat(verified.numbers, [len(each) for each in verified.unmasked]),
            edited=join_edited(list(verified.edited)),
        )

    @property
    def _compares_lengths(self) -> bool:
        """True in the first round of holes with several lengths, whose branches differ in length."""
        return len(self._lengths) > 1

    @property
    def holes(self) -> Holes | None:
        """The holes at their current length: the longest one until the first round has chosen; None without holes."""
        return self._lengths[-1] if self._lengths else None

    def _with_resized_holes(self, outcome: RoundOutcome) -> tuple[RoundOutcome, dict[int, int] | None]:
        """Return `outcome` with the lengths of holes that its tokens ask for, and the new places of positions."""
        growing = self._growing
        resized = (
            None if growing is None else resize(growing, outcome.branch, outcome.unmasked.positions, self._context)
        )
        if resized is None:
            return outcome, None
        self._growing, self._lengths = resized.growing, (resized.growing.holes,)
        return replace(outcome, branch=resized.branch), resized.places

    def _samples(self, packed: PackedRows) -> bool:
        """Return True if the round of `packed` may unmask a position."""
        return any(map(len, packed.sampled)) or hands_over(self.anchor)

    def _commit(self, packed: PackedRows, rows: RowStatistics, winner: int) -> None:
        """Commit the winner's finished rows."""
        if packed.commit:
            self._session.commit(self.request, packed.window_of(winner), packed.commit)
            self._cached = np.concatenate([self._cached, packed.positions[packed.rows_to_commit(winner)]])
        if packed.kept_columns:
            column = packed.first_columns[winner]
            self.kept_row, self._kept_for = rows[column], int(packed.column_positions[column])

    def _update_end(self, states: tuple[Branch, ...]) -> None:
        """Update `window_tokens` for the anchor and all `states` before it, and `stop_reason`."""
        longest = max(len(state.tokens) for state in states) - self.prompt_length
        if self.holes is not None:
            longest = sum(end - start for start, end in self.holes.holes)
        self.window_tokens = max(self.window_tokens, longest)
        if self._context.plan.reference:
            self.stop_reason = published_stop_reason(self._branches, self.steps, self._context)
        else:
            finished_blocks = self._context.plan.edits
            self.stop_reason = stop_reason(self.anchor, self._context.ends, finished_blocks=finished_blocks)
        if self.stop_reason == "length" and self._growing is not None and all(self._growing.is_shorter):
            self.stop_reason = "eos"  # the model ended every hole before its maximum

    def _stop_early(self, unmasked: Int64) -> None:
        """Stop if a step unmasked an end of text and left nothing masked before the first one (LLaDA2.0).

        The published code searches the prompt too: an end of text there leaves no answer. It does not cut an answer
        that ends behind max_new_tokens.
        """
        anchor, ends = self.anchor, self._context.ends
        if not is_end(unmasked, ends).any():
            return
        first = int(np.argmax(is_end(anchor.tokens, ends)))
        if anchor.unmasked[self.prompt_length : first].all():
            self.stop_reason, self._stopped_early_at = "eos", first

    def _lap(self, phase: str) -> None:
        """Record the time since the last lap as the step's `phase`."""
        now = time.perf_counter()
        self._seconds[phase], self._lap_began = now - self._lap_began, now

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit."""
        self.stop_reason = reason

    def write_draft(self) -> None:
        """Write the last round's best tokens at its masked positions, up to a position that it did not compute.

        The decode has ended, and nothing follows.
        """
        if self._proposed is None or self.drafted is not None:
            return
        positions, candidates = self._proposed
        masked = np.flatnonzero(~self.anchor.unmasked)
        unknown = np.setdiff1d(masked, positions)
        own = np.isin(positions, masked if not len(unknown) else masked[masked < unknown[0]])
        self.drafted = candidates[own]
        branch = with_tokens(self.anchor, positions[own], self.drafted.tokens, self.drafted.logprobs, self._context)
        self._branches = (branch,)

    @property
    def anchor(self) -> Branch:
        """Accepted sequence so far."""
        return self._branches[-1]

    def committed(self) -> Int64:
        """Return the final generated ids, including an end of text that ends the answer.

        With holes they reach from the first hole to the last one, or to the first masked position.
        """
        context, anchor = self._context, self.anchor
        if self._stopped_early_at is not None:
            return anchor.tokens[self.prompt_length : self._stopped_early_at + 1]
        changes = (context.plan.remasks or context.plan.edits) and self.stop_reason not in ("eos", "length")
        changes = changes and self.drafted is None
        length = final_length(anchor) if changes else unmasked_length(anchor)
        if context.is_llada2:
            length = min(length, context.plan.max_new_tokens)
        if self.holes is not None:
            length = min(length, anchor.layout.end - anchor.layout.prompt)
        return answer_ids(anchor, length, context.answer_ends)

    def generated(self) -> Int64:
        """Return every generated position, masked ones as the mask token. With holes, given tokens are among them."""
        return self.anchor.tokens[self.prompt_length : None if self.holes is None else self.anchor.layout.end]

    def logprobs(self) -> Float32 | None:
        """Return the log-probability of every generated position, NaN for masked ones, or None if not requested.

        GenerationResult defines them.
        """
        logprobs = self.anchor.logprobs
        return None if logprobs is None else logprobs[self.prompt_length :]

    def top_logprobs(self) -> list[tuple[TokenLogprob, ...]] | None:
        """Return the best candidates of every generated position, or None if not requested.

        Positions without a log-probability have none.
        """
        logprobs = self.logprobs()
        if self._record is None or logprobs is None:
            return None
        return self._record.of_positions(range(self.prompt_length, len(self.anchor.tokens)), ~np.isnan(logprobs))
