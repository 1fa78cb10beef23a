"""The decoding loop of one request: LoPA (docs/reference/algorithm.md, section 6), with D2F, threshold and vanilla as
special cases. examples/plain_lopa.py is the same algorithm in one file.

It works on token ids, without tokenizer, text, files or sessions: it returns the rows of a round, and takes their
statistics. Everything else that a request may have is an extension.
"""

import time
from collections.abc import Sequence

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import ForwardSplit, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.candidate_record import CandidateRecord
from lopa.runtime.decoding.edit import editing
from lopa.runtime.decoding.extension import Extension
from lopa.runtime.decoding.logit_changes import changed_rows
from lopa.runtime.decoding.reference import ReferenceMode
from lopa.runtime.decoding.remask import remaskable_positions, remasking
from lopa.runtime.decoding.round import RoundEnd, branch_again, joined, score_branches, unmask
from lopa.runtime.decoding.speculation import speculation
from lopa.runtime.decoding.step import Step
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.answer_state import AnswerState, StopReason
from lopa.runtime.state.branch import Branch, answer_of_branch, first_branch, with_tokens
from lopa.runtime.state.context import context_from_model
from lopa.runtime.state.layout import layout_of_prompt
from lopa.runtime.state.packed_rows import PackedRows, pack_rows
from lopa.runtime.state.pipeline import branches_of_round, hands_over
from lopa.runtime.state.shadow_rows import with_shadow_rows
from lopa.runtime.strategy import Candidates


class LopaLoop:
    """The state of one request between rounds. Every round unmasks positions of the best branch, and branches again."""

    def __init__(
        self, params: DecodingParams, model: Manifest, prompt: Int64, extensions: Sequence[Extension] = ()
    ) -> None:
        """Begin with `prompt` [length], at least one token.

        The `extensions` are those of the request, in the order in which they change the start. Options bring
        their own.
        """
        self.params, self.model = params, model
        asked = (*_extensions_of_params(params, model), *extensions)
        self._at_rows = [each.rows for each in asked if each.rows]
        self._at_candidates = [each.candidates for each in asked if each.candidates]
        self.after_unmasking = tuple(each.unmasked for each in asked if each.unmasked)
        self._at_answer = [each.answer for each in asked if each.answer]
        self.steps = self.strategy_steps = self.generated_positions = 0
        self._proposed: tuple[Int64, Candidates] | None = None
        """Masked positions [n] that the last round computed, and the best tokens there."""
        context = context_from_model(params, model)
        layout = layout_of_prompt(len(prompt), params, context.prediction_shift)
        branches: tuple[Branch, ...] = (first_branch(prompt, layout, context),)
        for each in asked:
            if each.start:
                context, branches = each.start(context, branches)
        self.context, self.branches = context, branches_of_round(branches, context)
        self.layout = self.anchor.layout
        self.answer = self._answer(self.branches[-1:], None)

    @property
    def anchor(self) -> Branch:
        """Accepted sequence so far."""
        return self.branches[-1]

    def open_round(self, cached: Int64) -> PackedRows:
        """Return the rows whose statistics `finish_round` takes; `cached` [P] are the positions of the cached rows.

        Temporarily cached rows are computed again if they do not match those that the round needs. A grammar can cause
        that: it may write the first position of the next sub-block, or remask an end of text, which brings positions
        back.
        """
        packed = pack_rows(self.branches, self.context)
        if cached[: packed.prefix].tobytes() != packed.cached.tobytes():  # faster than np.array_equal
            packed = pack_rows(self.branches, self.context, anew=True)
        if self.params.remasks:
            remaskable = remaskable_positions(self.anchor, self.context)
            packed = with_shadow_rows(packed, self.anchor, remaskable, self.context) if len(remaskable) else packed
        return packed

    def finish_round(
        self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None, seconds: dict[str, float]
    ) -> Step:
        """Process the statistics `rows` [C] of the round's `packed` rows: score, unmask, make the next branches.

        `split` is the forward's time by device, and `seconds` the time of the round by phase so far. The caller commits
        the rows of the step's winner.
        """
        began = time.perf_counter()
        self.steps += 1
        for at_rows in self._at_rows:
            rows = at_rows(self, packed, rows)
        end: RoundEnd | None = None
        for at_candidates in self._at_candidates:
            end = end or at_candidates(self, packed, rows)
        end = end or self._lopa_round(packed, rows)
        if any(map(len, packed.sampled)) or hands_over(self.anchor):
            self.strategy_steps += len(end.states)
        scores, winner = end.scores, end.numbers[-1]
        self._proposed = packed.sampled[winner], scores.view.candidates[winner]
        self.branches, self.layout = end.branches, end.branches[-1].layout
        self.answer = self._answer(end.states, end)
        seconds["select"], seconds["spawn"] = scores.moment - began, time.perf_counter() - scores.moment
        return Step(
            self.steps,
            scores.branches,
            packed,
            scores.confidences,
            winner,
            joined(end.unmasked),
            end.lookaheads,
            seconds,
            split,
            end.remasked,
            scores.view.candidates,
            np.array(end.numbers).repeat([len(each) for each in end.unmasked]),
            None if self.answer.stop_reason is None else self.anchor.lookahead,
            joined(end.edited),
            end.places,
        )

    def _lopa_round(self, packed: PackedRows, rows: RowStatistics) -> RoundEnd:
        """Score the branches, unmask positions of the best one, and make the branches of the next round."""
        context = self.context
        scores = score_branches(self.branches, packed, rows, self.strategy_steps + 1, context)
        outcome = unmask(scores, scores.view.winner, context, self.after_unmasking)
        return branch_again(scores, rows, outcome, 0 if self.params.speculative else self.params.lookaheads, context)

    def _answer(self, states: tuple[Branch, ...], end: RoundEnd | None) -> AnswerState:
        """Return the answer of the anchor, after a round with this `end` that reached `states`."""
        anchor, context = self.anchor, self.context
        longest = max(self.generated_positions, *(len(state.tokens) - anchor.layout.prompt for state in states))
        answer = answer_of_branch(anchor, context.ends, longest, finished_blocks=self.params.edits)
        for at_answer in self._at_answer:
            answer = at_answer(self, answer, end)
        self.generated_positions = answer.generated_positions
        return answer

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit. No published loop returns what it has then."""
        self.answer = self.answer._replace(stop_reason=reason, returns_generated=False)

    def write_draft(self) -> None:
        """Write the last round's best tokens at its masked positions, up to a position that it did not compute.

        The decode has ended, and nothing follows.
        """
        if self._proposed is None or self.answer.drafted is not None:
            return
        positions, candidates = self._proposed
        masked = np.flatnonzero(~self.anchor.unmasked)
        unknown = np.setdiff1d(masked, positions)
        own = np.isin(positions, masked if not len(unknown) else masked[masked < unknown[0]])
        drafted = candidates[own]
        anchor = with_tokens(self.anchor, positions[own], drafted.tokens, drafted.logprobs, self.context)
        self.branches = (anchor,)
        self.answer = self.answer._replace(
            tokens=anchor.tokens,
            unmasked=anchor.unmasked,
            token_logprobs=anchor.logprobs,
            final=min(answer_of_branch(anchor, self.context.ends, 0).final, self.answer.end - self.answer.start),
            drafted=drafted,
        )


def _extensions_of_params(params: DecodingParams, model: Manifest) -> list[Extension]:
    """Return the extensions for the options of `params`."""
    found: list[Extension] = []
    if params.reference:
        mode = ReferenceMode(params, model)
        found.append(Extension(start=mode.start, answer=mode.answer))
    if params.logit_changes:
        found.append(Extension(rows=changed_rows))
    if params.remasks:
        found.append(remasking())
    if params.edits:
        found.append(editing())
    if params.speculative:
        found.append(speculation())
    if params.top_logprobs:
        found.append(Extension(answer=CandidateRecord(params.top_logprobs).answer))
    return found
