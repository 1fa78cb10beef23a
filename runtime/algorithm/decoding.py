"""One request being decoded: LoPA's loop (docs/lopa.md, section 6; D2F, threshold and vanilla are its special cases).

Knows token ids only: no tokenizer, no text, no file.
"""

import time
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lopa.runtime.algorithm.branch_budget import BranchBudget
from lopa.runtime.algorithm.branches import (
    Branch,
    Lookahead,
    branch_from_prompt,
    branches_to_verify,
    committed_length,
    nothing_left,
)
from lopa.runtime.algorithm.candidates import Candidates, RowStatistics, candidates_from_rows, with_kept_row
from lopa.runtime.algorithm.competition import branch_confidence, winner_of
from lopa.runtime.algorithm.filling import Fills, filled, fills_from_candidates, without_rows_after_end
from lopa.runtime.algorithm.packing import batch_from_windows, rows_of_windows
from lopa.runtime.algorithm.sound_rows import check_rows_are_sound
from lopa.runtime.algorithm.spawning import branches_from_winner, lookaheads_from_candidates
from lopa.runtime.algorithm.windows import Windows, windows_from_branches
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.generation_config import PUBLISHED_STEP_LIMIT, GenerationConfig
from lopa.runtime.sessions.session import Session

StopReason = Literal["eos", "length", "stop_string", "time_limit", "step_limit", "cancelled"]


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
    ) -> None:
        """`prompt` [length], at least one token; `request` is a number unused in the session.

        `budget`, fresh for every request, decides on the number of branches; without it the config does. `prompt_row`
        [K] is what predicts behind the prompt where its rows are in the session already; without it the first round
        computes and commits them.
        """
        self._session, self._config, self._budget = session, config, budget
        self._vocabulary = manifest.dimensions.vocab_size
        self._shift = manifest.prediction_shift
        self._pad, self._mask = manifest.special_tokens.pad, manifest.special_tokens.mask
        self._eos = manifest.special_tokens.eos if config.stop_at_eos else None
        self.kept_row = prompt_row
        """[K], the statistics of the last committed row."""
        self.request = request
        self.prompt_length = len(prompt)
        self.steps = 0
        self.window_tokens = 0
        """Generated positions at their most, which is what the paper counts."""
        self.stop_reason: StopReason | None = None
        self._watch = Stopwatch()
        self._go_on_with((branch_from_prompt(prompt, cached=prompt_row is not None, with_logprobs=config.logprobs),))

    def step(self) -> Step:
        """One round: verify all branches in one forward, keep the most confident, fill it, branch again."""
        windows = self.open_round()
        batch = batch_from_windows([windows], [self.request], [self._config.temperature])
        statistics = self._session.forward(batch)
        return self.finish_round(windows, rows_of_windows(statistics, 0, windows), statistics.split)

    def open_round(self) -> Windows:
        """The windows whose statistics `finish_round` takes; nothing is decided yet."""
        self._watch = Stopwatch()
        windows = windows_from_branches(self._branches, self._config, prediction_shift=self._shift, pad_token=self._pad)
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
        if not windows.commit:
            rows = with_kept_row(rows, self.kept_row, windows.wanted - self._shift < windows.start)
        candidates = self._candidates(rows, windows)
        confidences = tuple(branch_confidence(candidate.confidences) for candidate in candidates)
        winner = winner_of(confidences)
        watch.lap("select")
        if windows.commit:
            self._session.commit(self.request, winner, windows.commit)
            self.kept_row = rows[winner, 0]
        watch.lap("commit")
        undecided, proposed = windows.undecided[winner], candidates[winner]
        fills = fills_from_candidates(branches[winner], undecided, proposed, self._config)
        chosen = filled(branches[winner], fills, mask_token=self._mask, eos_token=self._eos)
        if self._eos is not None and self._config.drops_rows_after_end:
            chosen = without_rows_after_end(chosen, self._eos)
        left = ~fills.chosen & (undecided < len(chosen.tokens))
        count = self._config.lookaheads
        if self._budget is not None:
            count = self._budget.lookaheads(branches, windows, candidates, confidences, chosen, self._config, self._eos)
        lookaheads = lookaheads_from_candidates(undecided[left], proposed[left], count)
        self._go_on_with(
            branches_from_winner(chosen, lookaheads, self._config, mask_token=self._mask, eos_token=self._eos)
        )
        watch.lap("spawn")
        return Step(self.steps, branches, windows, confidences, winner, fills, lookaheads, watch.seconds, split)

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit."""
        self.stop_reason = reason

    @property
    def anchor(self) -> Branch:
        """The sequence as accepted so far."""
        return self._branches[-1]

    def committed(self) -> Int64:
        """Generated ids that can no longer change, up to and including an end-of-text where that ends the answer."""
        ids = self.anchor.tokens[self.prompt_length :][: committed_length(self.anchor)]
        if self._eos is None or self._eos not in ids:
            return ids
        return ids[: int(np.argmax(ids == self._eos)) + 1]

    def generated(self) -> Int64:
        """Every generated position, undecided ones as the mask token."""
        return self.anchor.tokens[self.prompt_length :]

    def logprobs(self) -> Float32 | None:
        """Of every generated position (GenerationResult says which), NaN where undecided; None: not asked for."""
        logprobs = self.anchor.logprobs
        return None if logprobs is None else logprobs[self.prompt_length :]

    def _candidates(self, rows: RowStatistics, windows: Windows) -> list[Candidates]:
        """Per branch the candidates of its undecided positions."""
        every = candidates_from_rows(rows, windows.wanted, self._config, step=self.steps, mask_token=self._mask)
        return [
            every[row, windows.kept : windows.kept + len(positions)] for row, positions in enumerate(windows.undecided)
        ]

    def _go_on_with(self, branches: tuple[Branch, ...]) -> None:
        """Make them ready for the next round, and see whether anything is left to do."""
        self._branches = branches_to_verify(branches, self._config, self._mask)
        self.window_tokens = max(self.window_tokens, len(self.anchor.tokens) - self.prompt_length)
        ended = self._eos is not None and bool((self.committed() == self._eos).any())
        if self._config.published:
            if all(nothing_left(branch, self._config, self._mask) for branch in self._branches):
                self.stop_reason = "eos" if ended else "length"
            elif self.steps >= PUBLISHED_STEP_LIMIT:
                self.stop_reason = "step_limit"
        elif ended:
            self.stop_reason = "eos"
        elif self.anchor.decided.all() and len(self.anchor.blocks) > self._config.block_count:
            self.stop_reason = "length"
