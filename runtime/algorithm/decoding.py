"""One request being decoded: LoPA's loop (docs/lopa.md, section 6; D2F, threshold and vanilla are its special cases).

Knows token ids only: no tokenizer, no text, no file.
"""

import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Literal

import numpy as np

from lopa.runtime.algorithm.branch_budget import BranchBudget
from lopa.runtime.algorithm.candidates import candidates_from_rows
from lopa.runtime.algorithm.competition import branch_confidence, winner_of
from lopa.runtime.algorithm.filling import (
    Fills,
    chosen_of_candidates,
    filled,
    fills_of_chosen,
    handed_over,
    joined,
    positions_written,
    without_rows_after_end,
)
from lopa.runtime.algorithm.sound_rows import check_rows_are_sound
from lopa.runtime.algorithm.spawning import branches_from_winner, lookaheads_from_candidates
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.frontier.run import Choose, may_stand, rows_at_frontiers, run_from_frontier
from lopa.runtime.frontier.settled import settled
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.ladder.guesses import ladder
from lopa.runtime.ladder.question import asked_beside, same_question
from lopa.runtime.ladder.walk import walk
from lopa.runtime.sequence.branches import (
    Branch,
    Lookahead,
    branch_from_prompt,
    branches_to_verify,
    decided_length,
    hands_over,
    nothing_left,
    settled_length,
)
from lopa.runtime.sequence.layout import layout_of_prompt
from lopa.runtime.sequence.opened import open_positions
from lopa.runtime.sequence.packing import batch_from_windows, rows_of_windows
from lopa.runtime.sequence.row_statistics import RowStatistics, with_kept_row
from lopa.runtime.sequence.shadow_rows import with_shadow_rows
from lopa.runtime.sequence.shared_rows import Pays, with_shared_rows
from lopa.runtime.sequence.windows import Windows, windows_from_branches
from lopa.runtime.sessions.session import Session
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.judging import judged_positions, judged_probabilities, without_doubted
from lopa.runtime.strategy.rescore import rescored
from lopa.runtime.strategy.settings import rule_from_config

StopReason = Literal["eos", "length", "stop_string", "time_limit", "step_limit", "cancelled"]


def _whatever_may_be(candidates: Candidates, may: Bool) -> Bool:  # noqa: ARG001
    return may


@dataclass
class Stopwatch:
    """Seconds per phase of one step."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        """The time since the last lap belongs to `phase`."""
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._last
        self._last = now


@dataclass(frozen=True)
class Step:
    """What happened in one step."""

    number: int
    """1 for the first."""
    branches: tuple[Branch, ...]
    """As verified, the anchor last."""
    windows: Windows
    confidences: tuple[float, ...]
    winner: int
    fills: Fills
    lookaheads: tuple[Lookahead, ...]
    """Of the next step."""
    seconds: dict[str, float]
    split: ForwardSplit | None = None
    """Where the seconds of the forward went, when several devices computed it."""
    taken_back: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions that were decided and are not any more."""


class Decoding:
    """The state of one request between steps, and the step.

    `stop_reason` is None while there is something to do. The caller releases the request's cache in the session.
    """

    def __init__(
        self,
        session: Session,
        request: int,
        prompt: Int64,
        config: GenerationConfig,
        manifest: Manifest,
        budget: BranchBudget | None = None,
        prompt_row: RowStatistics | None = None,
        prompt_cached: bool = False,
        sharing: Pays | None = None,
        grammar: GrammarState | None = None,
    ) -> None:
        """`prompt` [length], at least one token; `request` is a number unused in the session.

        `budget`, fresh for every request, decides on the number of branches; without it the config does. Where the
        prompt's rows are in the session already (`prompt_cached`), `prompt_row` [K] is what predicts behind them, if
        rows predict the next position; else the first round computes and commits them. `sharing` says where rows that
        are equal on several branches are computed once; None: nowhere. `grammar` is what the answer satisfies.
        """
        self._session, self._config, self._budget, self._sharing = session, config, budget, sharing
        self._rule = rule_from_config(config)
        self._vocabulary = manifest.dimensions.vocab_size
        self._shift = manifest.prediction_shift
        self._pad, self._mask = manifest.special_tokens.pad, manifest.special_tokens.mask
        self._ends = manifest.special_tokens.ends if config.stop_at_eos else ()
        self.kept_row = prompt_row
        """[K], the statistics of the last committed row."""
        self.request = request
        self.prompt_length = len(prompt)
        self.steps = 0
        """Rounds."""
        self._rule_steps = 0
        """Of a lossless decode: steps that the rule alone would have taken so far, each a round."""
        self.window_tokens = 0
        """Generated positions at their most, which is what the paper counts."""
        self.stop_reason: StopReason | None = None
        self._watch = Stopwatch()
        self._branches: tuple[Branch, ...] = ()
        layout = layout_of_prompt(len(prompt), config, self._shift)
        first = branch_from_prompt(
            prompt,
            layout,
            mask_token=self._mask,
            cached=prompt_cached,
            with_logprobs=config.logprobs,
        )
        self._cached = layout.first if prompt_cached else 0
        """Rows of the request's prefix in the session."""
        self._go_on_with((replace(first, grammar=grammar),))

    def step(self) -> Step:
        """One round: verify all branches in one forward, keep the most confident, fill it, branch again."""
        windows = self.open_round()
        batch = batch_from_windows([windows], [self.request], [self._config.logits_temperature])
        statistics = self._session.forward(batch)
        return self.finish_round(windows, rows_of_windows(statistics, 0, windows), statistics.split)

    def open_round(self) -> Windows:
        """The windows whose statistics `finish_round` takes; nothing is decided yet.

        Called before their forward: rows that they do not stand on are forgotten in the session.
        """
        self._watch = Stopwatch()
        windows = windows_from_branches(self._branches, self._config, prediction_shift=self._shift, pad_token=self._pad)
        judged = judged_positions(self.anchor, self._rule, self._config, self._ends)
        windows = with_shadow_rows(
            windows,
            self.anchor,
            judged,
            self._config,
            prediction_shift=self._shift,
            mask_token=self._mask,
            pad_token=self._pad,
        )
        if self._sharing is not None:
            windows = with_shared_rows(windows, self._sharing)
        if windows.prefix < self._cached:
            self._session.shorten(self.request, windows.prefix)
            self._cached = windows.prefix
        self._watch.lap("windows")
        return windows

    def finish_round(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Take the statistics `rows` [B, Q] of the round's windows: choose, commit, fill, branch.

        Raises NonFiniteAnswerError for rows that no device should answer; nothing is taken over then.

        `split` is how the devices shared the forward, for the step that is returned.

        Called before the session's next forward, which overwrites the rows that are committed here.
        """
        watch, branches = self._watch, self._branches
        watch.lap("forward")
        self.steps += 1
        check_rows_are_sound(rows, self._vocabulary, device=self._session.device, step=self.steps)
        rows = with_kept_row(rows, self.kept_row, windows.lacking)
        if self._config.lossless:
            return self._walked(windows, rows, split)
        branches, rows = rescored(branches, windows, rows, self._rule.rescore, self._config)
        allowed = rows
        if self.anchor.grammar is not None:
            allowed = rows_at_frontiers(branches, windows, rows, self._config)
        every = self._candidates(allowed, windows.wanted)
        candidates = [every[row, windows.kept :][: len(asked)] for row, asked in enumerate(windows.asked)]
        confidences = tuple(branch_confidence(candidate.confidences) for candidate in candidates)
        winner = winner_of(confidences)
        watch.lap("select")
        self._commit(windows, rows, winner)
        watch.lap("commit")
        asked = windows.asked[winner]
        chosen, fills, proposed = self._filled(branches[winner], windows, asked, allowed[winner], every[winner])
        doubt = judged_probabilities(windows, rows, branches[-1])
        chosen, doubted = without_doubted(
            chosen,
            positions_written(branches[winner], fills),
            windows.judged,
            doubt,
            self._rule,
            self._config,
            mask_token=self._mask,
            ends=self._ends,
        )
        left = np.flatnonzero(
            ~fills.chosen
            & np.isin(asked, np.flatnonzero(open_positions(chosen, self._config)))
            & may_stand(chosen, asked, proposed)
        )
        most = self._config.lookaheads
        if self._budget is not None:
            most = self._budget.lookaheads(
                branches,
                windows,
                candidates,
                confidences,
                chosen,
                self._config,
                doubt=doubt,
                mask_token=self._mask,
                ends=self._ends,
            )
        lookaheads = lookaheads_from_candidates(asked[left], proposed[left], most)
        self._go_on_with(branches_from_winner(chosen, lookaheads, self._config, mask_token=self._mask, ends=self._ends))
        watch.lap("spawn")
        return Step(
            self.steps, branches, windows, confidences, winner, fills, lookaheads, watch.seconds, split, doubted
        )

    def _walked(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Go as far as the rule alone would by this round's answers, and guess where it goes from there."""
        watch, branches, fills = self._watch, self._branches, list[Fills]()
        every = candidates_from_rows(
            rows, windows.wanted, self._config, step=self._rule_steps + 1, mask_token=self._mask
        )
        confidences = tuple(
            branch_confidence(every[row, windows.kept :][: len(asked)].confidences)
            for row, asked in enumerate(windows.asked)
        )

        def next_state(state: Branch, rung: int) -> Branch:
            self._rule_steps += 1
            after, each = self._after_rule(state, windows, rows, rung - 1, self._rule_steps)
            fills.append(each)
            self._count_positions(after)
            return after

        self._commit(windows, rows, 0)  # in rounds of the anchor alone
        watch.lap("commit")
        rungs = (branches[-1], *branches[:-1])  # of which rung n is branch n - 1
        last, anchor = walk(rungs, next_state, partial(same_question, config=self._config))
        watch.lap("select")
        steps = count(self._rule_steps + 1)

        def following(state: Branch) -> Branch | None:
            after, each = self._after_rule(state, windows, rows, last - 1, next(steps))
            stuck = not len(each.positions) or self._end_of(after) is not None
            return None if stuck or not asked_beside(after, anchor, self._config) else after

        self.stop_reason = self._end_of(anchor)
        most = 1 if self.stop_reason is not None else 1 + self._config.lookaheads
        _, *guesses = ladder(anchor, following, most)
        self._branches = (*guesses, anchor)
        watch.lap("spawn")
        winner = (last - 1) % len(branches)
        return Step(self.steps, branches, windows, confidences, winner, joined(fills), (), watch.seconds, split)

    def _after_rule(
        self, branch: Branch, windows: Windows, rows: RowStatistics, row: int, step: int
    ) -> tuple[Branch, Fills]:
        """The state behind `branch` in the rule's step number `step`, by the answers to the branch `row` of a round."""
        row %= len(windows.asked)
        # All that were asked about, but for guesses, which are made by the answers to a state before.
        left = np.flatnonzero(np.isin(windows.asked[row], np.flatnonzero(~branch.decided)))
        asked, columns = windows.asked[row][left], np.concatenate([np.arange(windows.kept), windows.kept + left])
        (branch,), said = rescored(
            (branch,),
            replace(windows, asked=(asked,)),
            rows[row : row + 1, columns],
            self._rule.rescore,
            self._config,
        )
        every = candidates_from_rows(
            said[0], windows.wanted[row, columns], self._config, step=step, mask_token=self._mask
        )
        chosen, fills, _ = self._filled(branch, windows, asked, said[0], every)
        after = branches_from_winner(chosen, (), self._config, mask_token=self._mask, ends=self._ends)
        return branches_to_verify(after, self._config, self._mask)[0], fills

    def _commit(self, windows: Windows, rows: RowStatistics, winner: int) -> None:
        """Keep the winner's finished rows."""
        if windows.commit:
            self._session.commit(self.request, windows.branch_of_commit(winner), windows.commit)
            self._cached += windows.commit
        if windows.kept:
            self.kept_row = rows[winner, 0]

    def _filled(
        self, branch: Branch, windows: Windows, asked: Int64, rows: RowStatistics, every: Candidates
    ) -> tuple[Branch, Fills, Candidates]:
        """`branch` after its fills, and what was offered for the positions that were `asked` about.

        Of its `rows` [Q] and of `every` candidate [Q] made of them.
        """
        own = slice(windows.kept, windows.kept + len(asked))
        if windows.kept and hands_over(branch):
            behind = np.array([branch.blocks[-1].end])
            first, _ = self._run(branch, behind, rows[:1], every[:1], _whatever_may_be)
            chosen, fills = handed_over(branch, first, mask_token=self._mask, ends=self._ends)
            return self._settled(chosen), fills, every[own]
        rule = partial(chosen_of_candidates, branch, asked, config=self._config)
        proposed, decided = self._run(branch, asked, rows[own], every[own], rule)
        fills = fills_of_chosen(asked, proposed, decided)
        return self._settled(filled(branch, fills, mask_token=self._mask, ends=self._ends)), fills, proposed

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit."""
        self.stop_reason = reason

    @property
    def anchor(self) -> Branch:
        """The sequence as accepted so far."""
        return self._branches[-1]

    def committed(self) -> Int64:
        """Generated ids that can no longer change, up to and including an end-of-text where that ends the answer."""
        changes = self._config.doubt_threshold is not None and self.stop_reason not in ("eos", "length")
        return self._answer(settled_length(self.anchor) if changes else decided_length(self.anchor))

    def generated(self) -> Int64:
        """Every generated position, undecided ones as the mask token."""
        return self.anchor.tokens[self.prompt_length :]

    def logprobs(self) -> Float32 | None:
        """Of every generated position (GenerationResult says which), NaN where undecided; None: not asked for."""
        logprobs = self.anchor.logprobs
        return None if logprobs is None else logprobs[self.prompt_length :]

    def _answer(self, length: int) -> Int64:
        """The first generated ids, so many or up to and including an end-of-text where that ends the answer."""
        ids = self.anchor.tokens[self.prompt_length :][:length]
        found = np.isin(ids, self._ends)
        return ids[: int(np.argmax(found)) + 1] if found.any() else ids

    def _candidates(self, rows: RowStatistics, positions: Int64) -> Candidates:
        """Those of this round, of any shape of rows."""
        return candidates_from_rows(rows, positions, self._config, step=self.steps, mask_token=self._mask)

    def _run(
        self, branch: Branch, asked: Int64, rows: RowStatistics, proposed: Candidates, choose: Choose
    ) -> tuple[Candidates, Bool]:
        """The candidates [n] of the `asked` positions [n], and which are decided: where there is a grammar, no others
        than it allows from the frontier on."""
        if branch.grammar is None or not len(asked):
            return proposed, choose(proposed, np.ones(len(asked), np.bool_))
        return run_from_frontier(branch, asked, rows, self._candidates, choose, self._config)

    def _settled(self, branch: Branch) -> Branch:
        """`branch`, its decided tokens read by the grammar, without the rows behind the end of its text."""
        branch = settled(branch, mask_token=self._mask, ends=self._ends)
        if self._ends and self._config.drops_rows_after_end:
            return without_rows_after_end(branch, self._ends)
        return branch

    def _go_on_with(self, branches: tuple[Branch, ...]) -> None:
        """Make them ready for the next round, and see whether anything is left to do.

        With a grammar they are settled before and after: what was taken back lets no block open, and what opens may be
        written at once.
        """
        has_grammar = branches[-1].grammar is not None
        written = tuple(map(self._settled, branches)) if has_grammar else branches
        ready = branches_to_verify(written, self._config, self._mask)
        self._branches = tuple(map(self._settled, ready)) if has_grammar else ready
        self._count_positions(self.anchor)
        if not self._config.published:
            self.stop_reason = self._end_of(self.anchor)
        elif all(nothing_left(branch, self._config, self._mask) for branch in self._branches):
            self.stop_reason = "eos" if np.isin(self.committed(), self._ends).any() else "length"
        elif self.steps >= self._config.step_limit:
            self.stop_reason = "step_limit"

    def _count_positions(self, branch: Branch) -> None:
        self.window_tokens = max(self.window_tokens, len(branch.tokens) - self.prompt_length)

    def _end_of(self, branch: Branch) -> StopReason | None:
        """Why nothing is left to do for `branch`; None: something is."""
        if np.isin(branch.tokens[self.prompt_length :][: decided_length(branch)], self._ends).any():
            return "eos"
        return "length" if branch.decided.all() and len(branch.tokens) >= branch.layout.end else None
