"""The state of a request whose answer is one of given choices: its rows, and the probabilities read from them.

A choice is written from left to right behind the prompt, in a canvas of masks. Each token has the probability that the
model gives it at the first masked position. All tokens behind the same earlier tokens come from one row, so a request
computes a window for each distinct beginning of its choices. Windows are independent of each other and share forwards.

If rows attend to nothing behind their block, the first forward caches the prompt's whole blocks for later ones.
Otherwise every window computes the prompt again, because its rows attend to the canvas.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K, Float32, Int64
from lopa.runtime.contract.candidate_list import TokenLogprob, candidates_from_row
from lopa.runtime.contract.forward import ForwardSplit
from lopa.runtime.contract.row_statistics import RowStatistics, check_statistics
from lopa.runtime.errors import ChoicesRefusedError
from lopa.runtime.plan import MAX_BRANCHES, DecodingPlan
from lopa.runtime.scoring.choice_scores import ChoiceScores, EncodedChoice, scores_from_logprobs
from lopa.runtime.state.branch import StopReason
from lopa.runtime.state.branch_rows import attention_mask
from lopa.runtime.state.layout import Layout, layout_of_prompt
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.state.shared_rows import SharingTest, with_shared_rows

MAX_ROWS = 2048
"""Maximum number of rows of a forward with several windows, about twice the prompt tokens that may join a round. A
window always fits."""

Beginning = tuple[int, ...]
"""Tokens of a choice before one of its tokens."""


class Device(Protocol):
    """The part of a session that a scoring request needs."""

    @property
    def device(self) -> str:
        """Name of the device."""

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix."""


def end_of_canvas(prompt: int, longest: int, plan: DecodingPlan, max_positions: int) -> int:
    """Return the exclusive end of the canvas behind a prompt of `prompt` tokens.

    The canvas consists of the blocks in which a decode would write the `longest` choice, cut at the model's last
    position.
    """
    layout = layout_of_prompt(prompt, plan)
    blocks = -(-(prompt + longest - layout.first) // layout.size)
    return min(layout.first + blocks * layout.size, max_positions)


class Scoring:
    """The state of one request between forwards. `stop_reason` is None until all choices have their scores."""

    kept_row: None = None
    """A scoring request commits no rows, so it keeps none."""

    def __init__(
        self,
        session: Device,
        request: int,
        prompt: Int64,
        choices: Sequence[EncodedChoice],
        plan: DecodingPlan,
        manifest: Manifest,
        sharing: SharingTest | None = None,
    ) -> None:
        """Begin with `prompt` [length] and at least one choice; `request` is an unused number in the session.

        `sharing` decides whether equal rows of several windows are computed once; None means never.
        """
        self._session, self._prompt, self._choices, self._plan, self._sharing = session, prompt, choices, plan, sharing
        self._manifest = manifest
        self.request, self.prompt_length = request, len(prompt)
        self._layout = layout_of_prompt(len(prompt), plan, manifest.prediction_shift)
        longest = max(len(choice.token_ids) for choice in choices)
        self._end = end_of_canvas(len(prompt), longest, plan, manifest.dimensions.max_positions)
        self._cached = 0
        """Number of the prompt's rows in the session's cache."""
        self._next_tokens = tokens_by_beginning(choices)
        self._waiting = list(self._next_tokens)
        self._found: dict[tuple[Beginning, int], float] = {}
        """Log-probability of each token behind a beginning."""
        self._best_candidates: dict[Beginning, tuple[TokenLogprob, ...]] = {}
        self.steps = 0
        """Number of forwards."""
        self.scores: ChoiceScores | None = None
        self.stop_reason: StopReason | None = None

    @property
    def window_tokens(self) -> int:
        """Number of positions of the canvas."""
        return self._end - self.prompt_length

    def open_round(self) -> PackedRows:
        """Return the rows of the next forward."""
        count = max(1, min(MAX_BRANCHES, MAX_ROWS // (self._end - self._cached)))
        caches = self._plan.window != "full" and not self._cached and len(self._waiting) > count
        packed = rows_of_beginnings(
            self._prompt,
            self._waiting[:count],
            slice(self._cached, self._end),
            self._layout,
            self._plan,
            self._manifest,
            commit=self._layout.first if caches else 0,
        )
        return packed if self._sharing is None else with_shared_rows(packed, self._sharing)

    def finish_round(self, packed: PackedRows, rows: RowStatistics, _: ForwardSplit | None) -> None:
        """Read probabilities from the statistics `rows` [C] of the `packed` rows from `open_round`.

        Raises NonFiniteAnswerError for statistics that are not finite, and ChoicesRefusedError if the statistics do not
        contain a token.
        """
        self.steps += 1
        check_statistics(rows, self._manifest.dimensions.vocab_size, device=self._session.device, step=self.steps)
        if packed.commit:
            self._session.commit(self.request, 0, packed.commit)
            self._cached = packed.commit
        count = len(rows.entropy)
        for number, beginning in enumerate(self._waiting[:count]):
            row = rows[number]
            tokens = sorted(self._next_tokens[beginning])
            logprobs = logprobs_of_tokens(row, tokens, self._plan.logits_temperature)
            for token, logprob in zip(tokens, logprobs, strict=True):
                if logprob is None:
                    raise self._missing(beginning, token)
                self._found[beginning, token] = logprob
            if self._plan.top_logprobs:
                self._best_candidates[beginning] = candidates_from_row(
                    row, self._plan.top_logprobs, (self._manifest.special_tokens.mask,)
                )
        del self._waiting[:count]
        if not self._waiting:
            of_choices = [self._logprobs_of(choice.token_ids) for choice in self._choices]
            self.scores = scores_from_logprobs(self._choices, of_choices, self.window_tokens)
            self.stop_reason = "choice"

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit."""
        self.stop_reason = reason

    def committed(self) -> Int64:
        """Return the ids of the most probable choice; none before the end."""
        return np.array([] if self.scores is None else self.scores.best.token_ids, np.int64)

    def generated(self) -> Int64:
        """Return the same as `committed`."""
        return self.committed()

    def logprobs(self) -> Float32 | None:
        """Return the log-probability of each token of the most probable choice, or None if not requested."""
        if not self._plan.logprobs:
            return None
        return np.array([] if self.scores is None else self.scores.best.token_logprobs, np.float32)

    def top_logprobs(self) -> list[tuple[TokenLogprob, ...]] | None:
        """Return the best candidates for each token of the most probable choice, or None if not requested."""
        if not self._plan.top_logprobs:
            return None
        ids = self.committed().tolist()
        return [self._best_candidates[tuple(ids[:place])] for place in range(len(ids))]

    def _logprobs_of(self, ids: Beginning) -> tuple[float, ...]:
        return tuple(self._found[ids[:place], token] for place, token in enumerate(ids))

    def _missing(self, beginning: Beginning, token: int) -> ChoicesRefusedError:
        written = (*beginning, token)
        number = next(n for n, each in enumerate(self._choices) if each.token_ids[: len(written)] == written)
        return ChoicesRefusedError(
            f"choice {number}, {self._choices[number].text[:80]!r}: its token {token} at index {len(beginning)} is not "
            f"among the {TOP_K} most probable ones",
            expected=f"a bundle that returns logits, since this one returns the {TOP_K} best candidates only",
            remedy="export the checkpoint with --with-logits, or constrain the answer with a regex",
        )


def tokens_by_beginning(choices: Sequence[EncodedChoice]) -> dict[Beginning, set[int]]:
    """Return the tokens that follow each distinct beginning of the choices, shorter beginnings first."""
    found: dict[Beginning, set[int]] = {}
    for choice in choices:
        for place, token in enumerate(choice.token_ids):
            found.setdefault(choice.token_ids[:place], set()).add(token)
    return dict(sorted(found.items(), key=lambda each: len(each[0])))


def rows_of_beginnings(
    prompt: Int64,
    beginnings: Sequence[Beginning],
    span: slice,
    layout: Layout,
    plan: DecodingPlan,
    manifest: Manifest,
    *,
    commit: int = 0,
) -> PackedRows:
    """Return a window over the positions `span` for each of the `beginnings` behind `prompt`, with masks behind it.

    Every window samples the first masked position. The rows before `span` are cached. The first `commit` rows are to be
    cached; they are the same in every window.
    """
    count, order = len(beginnings), np.arange(span.start, span.stop)
    sequences = np.full((count, span.stop), manifest.special_tokens.mask, np.int64)
    sequences[:, : len(prompt)] = prompt
    for row, beginning in enumerate(beginnings):
        sequences[row, len(prompt) : len(prompt) + len(beginning)] = beginning
    slots = len(prompt) + np.array(list(map(len, beginnings)))
    lengths = (len(order),) * count
    return PackedRows(
        prefix=span.start,
        commit=commit,
        lengths=lengths,
        branch_lengths=lengths,
        input_ids=sequences[:, order].ravel(),
        positions=np.tile(order, count),
        mask=np.tile(attention_mask(order, layout, plan).ravel(), count),
        sampled=tuple(slots[:, None]),
        kept_columns=0,
        column_positions=slots,
        column_rows=slots - manifest.prediction_shift - span.start + len(order) * np.arange(count),
        cached=np.arange(span.start),
    )


def logprobs_of_tokens(row: RowStatistics, tokens: Sequence[int], temperature: float) -> list[float | None]:
    """Return the log-probability of each of `tokens` by `row` [K], or None for tokens that the row does not contain.

    Tokens that are not among the best candidates are read from the logits, if there are any. These are before
    temperature.
    """
    known = dict(zip(row.topk_ids.tolist(), row.topk_logprobs.tolist(), strict=True))
    if row.logits is None or known.keys() >= set(tokens):
        return [known.get(token) for token in tokens]
    scaled = row.logits.astype(np.float64) / temperature
    largest = scaled.max()
    norm = largest + np.log(np.exp(scaled - largest).sum())
    return [known.get(token, float(scaled[token] - norm)) for token in tokens]
