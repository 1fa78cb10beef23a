"""One request being decoded: LoPA's loop (docs/lopa.md, section 6; D2F, threshold and vanilla are its special cases).

Knows token ids only: no tokenizer, no text, no file.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from lopa.runtime.algorithm.branch_budget import BranchBudget
from lopa.runtime.algorithm.contest import asked_candidates, contest_of, mean_confidences, outcome_of
from lopa.runtime.algorithm.deciding import Terms, answers_of, made_ready, state_after
from lopa.runtime.algorithm.filling import joined
from lopa.runtime.algorithm.sound_rows import check_rows_are_sound
from lopa.runtime.algorithm.spawning import branches_from_winner, lookaheads_from_candidates
from lopa.runtime.algorithm.step import Step, Stopwatch
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.ladder.advance import advance_of, guesses_behind
from lopa.runtime.sequence.branches import Branch, branch_from_prompt, decided_length, hands_over, settled_length
from lopa.runtime.sequence.ends import StopReason, answer_ids, end_as_published, end_of
from lopa.runtime.sequence.layout import layout_of_prompt
from lopa.runtime.sequence.packing import batch_from_windows, rows_of_windows
from lopa.runtime.sequence.row_statistics import RowStatistics, with_kept_row
from lopa.runtime.sequence.shadow_rows import with_shadow_rows
from lopa.runtime.sequence.shared_rows import Pays, with_shared_rows
from lopa.runtime.sequence.windows import Windows, check_rows, windows_from_branches
from lopa.runtime.sessions.session import Session
from lopa.runtime.strategy.judging import judged_positions
from lopa.runtime.strategy.settings import rule_from_config

__all__ = ["Decoding", "Step", "StopReason"]


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
        self._vocabulary, self._shift = manifest.dimensions.vocab_size, manifest.prediction_shift
        self._pad, mask = manifest.special_tokens.pad, manifest.special_tokens.mask
        self._ends = manifest.special_tokens.ends if config.stop_at_eos else ()
        self._terms = Terms(config, rule_from_config(config), mask, self._ends)
        self.kept_row = prompt_row
        """[K], the statistics of the last row of finished blocks that was committed."""
        self.request = request
        self.prompt_length = len(prompt)
        self.steps = 0
        """Rounds."""
        self._rule_steps = 0
        """Steps that the rule alone would have taken so far, those left out that ask about nothing: what draws go by. A
        round that only keeps a prompt's rows falls away where they are kept already."""
        self.window_tokens = 0
        """Generated positions at their most, which is what the paper counts."""
        self.stop_reason: StopReason | None = None
        self._watch = Stopwatch()
        layout = layout_of_prompt(len(prompt), config, self._shift)
        self._kept_for = None if prompt_row is None else layout.first
        """The position that the kept row speaks of."""
        first = branch_from_prompt(prompt, layout, mask_token=mask, cached=prompt_cached, with_logprobs=config.logprobs)
        self._cached = np.arange(layout.first if prompt_cached else 0)
        """[P], positions of the rows of the request's prefix in the session, in their order."""
        self._branches = made_ready((replace(first, grammar=grammar),), self._terms)
        self._look_for_end((self.anchor,))

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
        windows = self._windows()
        judged = judged_positions(self.anchor, self._terms.rule, self._config, self._ends)
        windows = with_shadow_rows(
            windows,
            self.anchor,
            judged,
            self._config,
            prediction_shift=self._shift,
            mask_token=self._terms.mask_token,
            pad_token=self._pad,
        )
        if self._sharing is not None:
            windows = with_shared_rows(windows, self._sharing)
        unseen = self.anchor.layout.unseen
        check_rows(windows, prediction_shift=self._shift, unseen=unseen, kept_for=self._kept_for)
        if windows.prefix < len(self._cached):
            self._session.shorten(self.request, windows.prefix)
            self._cached = windows.cached
        self._watch.lap("windows")
        return windows

    def _windows(self) -> Windows:
        """Return the windows of the round, which stand on the rows that the cache begins with.

        Rows that are kept for a while are computed anew where they are not those that the round needs: a grammar may
        write the first position of the next sub-block, and may remask an end-of-text, which brings positions back.
        """
        for anew in (False, True):
            windows = windows_from_branches(
                self._branches, self._config, prediction_shift=self._shift, pad_token=self._pad, anew=anew
            )
            if np.array_equal(self._cached[: windows.prefix], windows.cached):
                return windows
        raise RuntimeError(
            f"the cache holds the rows of {len(self._cached)} positions, expected those of the {windows.prefix} that a "
            "round needs (this is a bug in lopa, please report it)"
        )

    def finish_round(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Take the statistics `rows` [B, Q] of the round's windows: choose, commit, fill, branch.

        Raises NonFiniteAnswerError for rows that no device should answer; nothing is taken over then.

        `split` is how the devices shared the forward, for the step that is returned.

        Called before the session's next forward, which overwrites the rows that are committed here.
        """
        self._watch.lap("forward")
        self.steps += 1
        check_rows_are_sound(rows, self._vocabulary, device=self._session.device, step=self.steps)
        rows = with_kept_row(rows, self.kept_row, windows.lacking)
        return (self._walked if self._config.lossless else self._contested)(windows, rows, split)

    def _contested(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Go on with the branch that wins, and look ahead from there."""
        terms, watch = self._terms, self._watch
        contest = contest_of(self._branches, windows, rows, self._rule_steps + 1, terms)
        self._rule_steps += self._asks(windows)
        branches, winner = contest.branches, contest.winner
        watch.lap("select")
        self._commit(windows, rows, winner)
        watch.lap("commit")
        outcome = outcome_of(contest, terms)
        most = self._config.lookaheads
        if self._budget is not None:
            most = self._budget.lookaheads(
                branches,
                windows,
                asked_candidates(contest.answers),
                contest.confidences,
                outcome.branch,
                contest.doubt,
                terms,
            )
        lookaheads = lookaheads_from_candidates(outcome.left, outcome.proposed, most)
        spawned = branches_from_winner(
            outcome.branch, lookaheads, self._config, mask_token=terms.mask_token, ends=self._ends
        )
        self._branches = made_ready(spawned, terms)
        self._look_for_end((self.anchor,))
        watch.lap("spawn")
        return Step(
            self.steps,
            branches,
            windows,
            contest.confidences,
            winner,
            outcome.fills,
            lookaheads,
            watch.seconds,
            split,
            outcome.taken_back,
            asked_candidates(contest.answers),
            np.full(len(outcome.fills), winner),
            None if self.stop_reason is None else self.anchor.lookahead,
        )

    def _walked(self, windows: Windows, rows: RowStatistics, split: ForwardSplit | None) -> Step:
        """Go as far as the rule alone would by this round's answers, and guess where it goes from there."""
        watch, branches = self._watch, self._branches
        self._commit(windows, rows, 0)  # in rounds of the anchor alone
        watch.lap("commit")
        answers = answers_of(windows, rows, self._rule_steps + 1, self._terms)
        rule = partial(state_after, answers, terms=self._terms)
        advance = advance_of(branches, rule, self._rule_steps, self._config)
        self._rule_steps += len(advance.states) * self._asks(windows)
        watch.lap("select")
        self._branches = advance.states[-1:]
        self._look_for_end(advance.states)
        if self.stop_reason is None:
            guesses = guesses_behind(advance, rule, self._rule_steps, self._config, self._ends)
            self._branches = (*guesses, *self._branches)
        watch.lap("spawn")
        fills, confidences = joined(advance.decided), mean_confidences(answers)
        return Step(
            self.steps,
            branches,
            windows,
            confidences,
            advance.row,
            fills,
            (),
            watch.seconds,
            split,
            candidates=asked_candidates(answers),
            fill_branches=np.repeat(advance.rows, [len(each) for each in advance.decided]),
        )

    def _asks(self, windows: Windows) -> bool:
        """Whether a round may decide something."""
        return any(map(len, windows.asked)) or hands_over(self.anchor)

    def _commit(self, windows: Windows, rows: RowStatistics, winner: int) -> None:
        """Keep the winner's finished rows."""
        if windows.commit:
            self._session.commit(self.request, windows.branch_of_commit(winner), windows.commit)
            self._cached = np.concatenate([self._cached, windows.positions[winner, : windows.commit]])
        if windows.kept:
            self.kept_row, self._kept_for = rows[winner, 0], int(windows.wanted[winner, 0])

    def _look_for_end(self, states: tuple[Branch, ...]) -> None:
        """Count the positions of the anchor, and of all `states` that it went through; see whether anything is left."""
        most = max(len(state.tokens) for state in states) - self.prompt_length
        self.window_tokens = max(self.window_tokens, most)
        if self._config.published:
            self.stop_reason = end_as_published(
                self._branches, self.steps, self._config, mask_token=self._terms.mask_token, ends=self._ends
            )
        else:
            self.stop_reason = end_of(self.anchor, self._ends)

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
        length = settled_length(self.anchor) if changes else decided_length(self.anchor)
        return answer_ids(self.anchor, length, self._ends)

    def generated(self) -> Int64:
        """Every generated position, undecided ones as the mask token."""
        return self.anchor.tokens[self.prompt_length :]

    def logprobs(self) -> Float32 | None:
        """Of every generated position (GenerationResult says which), NaN where undecided; None: not asked for."""
        logprobs = self.anchor.logprobs
        return None if logprobs is None else logprobs[self.prompt_length :]
