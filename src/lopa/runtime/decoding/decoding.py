"""One request being decoded: LoPA's loop (docs/reference/algorithm.md, section 6; D2F, threshold and vanilla are its
special cases).

Knows token ids only: no tokenizer, no text, no file.
"""

import time
from dataclasses import replace
from typing import Protocol

import numpy as np

from lopa.runtime.contract import Float32, Int64, Statistics, WindowBatch
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.contract.row_statistics import RowStatistics, check_statistics, with_kept_row
from lopa.runtime.decoding.branch_budget import BranchBudget, tokens_gained
from lopa.runtime.decoding.remask import judged_positions
from lopa.runtime.decoding.round import joined_fills, score_branches, scores_from_rows, spawn, unmask
from lopa.runtime.decoding.speculation import drafts, verify
from lopa.runtime.decoding.step import Step
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.batch import Pays, batch_from_windows, rows_of_windows, with_shared_rows
from lopa.runtime.state.branch import (
    Branch,
    StopReason,
    answer_ids,
    final_length,
    first_branch,
    published_stop_reason,
    stop_reason,
    unmasked_length,
)
from lopa.runtime.state.branch_grammar import BranchGrammar
from lopa.runtime.state.context import Model, context_from_model
from lopa.runtime.state.layout import layout_of_prompt
from lopa.runtime.state.pipeline import branches_of_round, hands_over, next_anchor
from lopa.runtime.state.shadow_rows import with_shadow_rows
from lopa.runtime.state.windows import Windows, check_rows, windows_from_branches

__all__ = ["Decoding", "Pays", "Step", "StopReason"]


class Forwards(Protocol):
    """What a decode needs of a session (lopa.runtime.sessions.session)."""

    @property
    def device(self) -> str:
        """Name of the device."""

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run every window against its request's prefix; commit nothing."""

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix."""

    def shorten(self, request: int, count: int) -> None:
        """Forget the request's committed rows behind the first `count`."""


class Decoding:
    """The state of one request between steps, and the step.

    `stop_reason` is None while there is something to do. The caller releases the request's cache in the session.
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
        prompt_cached: bool = False,
        sharing: Pays | None = None,
        grammar: BranchGrammar | None = None,
    ) -> None:
        """Begin with `prompt` [length], at least one token; `request` is a number unused in the session.

        `budget`, fresh for every request, decides on the number of branches; without it the plan does. Where the
        prompt's rows are in the session already (`prompt_cached`), `prompt_row` [K] is what predicts behind them, if
        rows predict the next position; else the first round computes and commits them. `sharing` says where rows that
        are equal on several branches are computed once; None: nowhere. The answer satisfies `grammar`.
        """
        self._session, self._budget, self._sharing = session, budget, sharing
        self._context = context = context_from_model(plan, model)
        self.kept_row = prompt_row
        """[K], the statistics of the last row of finished blocks that was committed."""
        self.request = request
        self.prompt_length = len(prompt)
        self.steps = 0
        """Rounds."""
        self._strategy_steps = 0
        """Logical step counter that seeds sampling. Rounds that query no position do not count: one that only keeps a
        prompt's rows falls away where they are kept already."""
        self.window_tokens = 0
        """Generated positions at their maximum, which is what the paper counts."""
        self.stop_reason: StopReason | None = None
        self._seconds: dict[str, float] = {}
        self._lap_began = 0.0
        layout = layout_of_prompt(len(prompt), plan, context.prediction_shift)
        self._kept_for = None if prompt_row is None else layout.first
        """The position that the kept row speaks of."""
        self._cached = np.arange(layout.first if prompt_cached else 0)
        """[P], positions of the rows of the request's prefix in the session, in their order."""
        first = first_branch(prompt, layout, context, cached=prompt_cached)
        self._branches = branches_of_round((replace(first, grammar=grammar),), context)
        self._look_for_end((self.anchor,))

    def step(self) -> Step:
        """Do one round: verify all branches in one forward, unmask the most confident one, branch again."""
        windows = self.open_round()
        batch = batch_from_windows([windows], [self.request], [self._context.plan.logits_temperature])
        statistics = self._session.forward(batch)
        return self.finish_round(windows, rows_of_windows(statistics, 0, windows), statistics.split)

    def open_round(self) -> Windows:
        """Return the windows whose statistics `finish_round` takes; nothing is unmasked yet.

        Call it before their forward: rows that they do not stand on are forgotten in the session.
        """
        self._seconds, self._lap_began = {}, time.perf_counter()
        windows, anchor, context = self._windows(), self.anchor, self._context
        if context.plan.remasks:
            judged = judged_positions(anchor, context)
            windows = with_shadow_rows(windows, anchor, judged, context) if len(judged) else windows
        if self._sharing is not None:
            windows = with_shared_rows(windows, self._sharing)
        check_rows(
            windows,
            prediction_shift=context.prediction_shift,
            unseen=anchor.layout.unseen,
            kept_for=self._kept_for,
        )
        if windows.prefix < len(self._cached):
            self._session.shorten(self.request, windows.prefix)
            self._cached = windows.cached
        self._lap("windows")
        return windows

    def _windows(self) -> Windows:
        """Return the windows of the round, which stand on the rows that the cache begins with.

        Rows that are kept for a while are computed anew where they are not those that the round needs: a grammar may
        write the first position of the next sub-block, and may remask an end of text, which brings positions back.
        """
        for anew in (False, True):
            windows = windows_from_branches(self._branches, self._context, anew=anew)
            if np.array_equal(self._cached[: windows.prefix], windows.cached):
                return windows
        raise RuntimeError(
            f"the cache holds the rows of {len(self._cached)} positions, expected those of the {windows.prefix} that a "
            "round needs (this is a bug in lopa, please report it)"
        )

    def finish_round(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Take the statistics `rows` [B, Q] of the round's windows: score, commit, unmask, spawn.

        Raises NonFiniteAnswerError for rows that no device should answer; nothing is taken over then. `split` is how
        the devices shared the forward, for the step that is returned. Call it before the session's next forward, which
        overwrites the rows that are committed here.
        """
        self._lap("forward")
        self.steps += 1
        check_statistics(rows, self._context.vocab_size, device=self._session.device, step=self.steps)
        rows = with_kept_row(rows, self.kept_row, windows.lacking)
        step = self._speculative_round if self._context.plan.speculative else self._round
        return step(windows, rows, split)

    def _round(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Go on with the branch that wins, and look ahead from there."""
        context = self._context
        scores = score_branches(self._branches, windows, rows, self._strategy_steps + 1, context)
        self._strategy_steps += self._asks(windows)
        self._lap("select")

        winner = scores.view.winner
        self._commit(windows, rows, winner)
        self._lap("commit")

        if self._budget is None:
            outcome = unmask(scores, winner, context)
            anchor, count = next_anchor(outcome.branch), context.plan.lookaheads
        else:
            outcomes = [unmask(scores, number, context) for number in range(len(scores.branches))]
            gains = [tokens_gained(*pair, context.ends) for pair in zip(scores.branches, outcomes, strict=True)]
            outcome = outcomes[winner]
            anchor = next_anchor(outcome.branch)
            count = self._budget.lookaheads(scores.confidences, gains, anchor, context)
        spawned = spawn(anchor, outcome, count, context)
        self._branches = spawned.branches
        self._look_for_end((self.anchor,))
        self._lap("spawn")
        return Step(
            self.steps,
            scores.branches,
            windows,
            scores.confidences,
            winner,
            outcome.fills,
            spawned.lookaheads,
            self._seconds,
            split,
            outcome.remasked,
            scores.view.candidates,
            np.full(len(outcome.fills.positions), winner),
            None if self.stop_reason is None else self.anchor.lookahead,
        )

    def _speculative_round(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Go as far as the strategy alone would by this round's answers, and draft where it goes from there."""
        context, branches = self._context, self._branches
        self._commit(windows, rows, 0)  # in rounds of the anchor alone
        self._lap("commit")
        scores = scores_from_rows(branches, windows, rows, self._strategy_steps + 1, context)
        verified = verify(branches, scores, self._strategy_steps, context)
        self._strategy_steps += len(verified.states) * self._asks(windows)
        self._lap("select")
        self._branches = verified.states[-1:]
        self._look_for_end(verified.states)
        if self.stop_reason is None:
            self._branches = (*drafts(verified, scores, self._strategy_steps, context), *self._branches)
        self._lap("spawn")
        return Step(
            self.steps,
            branches,
            windows,
            scores.confidences,
            verified.numbers[-1],
            joined_fills(verified.fills),
            (),
            self._seconds,
            split,
            candidates=scores.view.candidates,
            fill_branches=np.repeat(verified.numbers, [len(each) for each in verified.fills]),
        )

    def _asks(self, windows: Windows) -> bool:
        """Return whether a round may unmask something."""
        return any(map(len, windows.asked)) or hands_over(self.anchor)

    def _commit(self, windows: Windows, rows: RowStatistics, winner: int) -> None:
        """Keep the winner's finished rows."""
        if windows.commit:
            self._session.commit(self.request, windows.branch_of_commit(winner), windows.commit)
            self._cached = np.concatenate([self._cached, windows.positions[winner, : windows.commit]])
        if windows.kept:
            self.kept_row, self._kept_for = rows[winner, 0], int(windows.wanted[winner, 0])

    def _look_for_end(self, states: tuple[Branch, ...]) -> None:
        """Count the positions of the anchor and of all `states` that it went through; see whether anything is left."""
        longest = max(len(state.tokens) for state in states) - self.prompt_length
        self.window_tokens = max(self.window_tokens, longest)
        if self._context.plan.reference:
            self.stop_reason = published_stop_reason(self._branches, self.steps, self._context)
        else:
            self.stop_reason = stop_reason(self.anchor, self._context.ends)

    def _lap(self, phase: str) -> None:
        """Count the time since the last lap as the step's `phase`."""
        now = time.perf_counter()
        self._seconds[phase], self._lap_began = now - self._lap_began, now

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit."""
        self.stop_reason = reason

    @property
    def anchor(self) -> Branch:
        """The sequence as accepted so far."""
        return self._branches[-1]

    def committed(self) -> Int64:
        """Return the generated ids that can no longer change, an end of text that ends the answer included."""
        changes = self._context.plan.remasks and self.stop_reason not in ("eos", "length")
        anchor = self.anchor
        length = final_length(anchor) if changes else unmasked_length(anchor)
        return answer_ids(anchor, length, self._context.ends)

    def generated(self) -> Int64:
        """Return every generated position, masked ones as the mask token."""
        return self.anchor.tokens[self.prompt_length :]

    def logprobs(self) -> Float32 | None:
        """Return the log-probability of every generated position (GenerationResult says which), NaN where masked; None
        where not requested."""
        logprobs = self.anchor.logprobs
        return None if logprobs is None else logprobs[self.prompt_length :]
