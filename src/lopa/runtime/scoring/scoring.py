"""The state of a request whose answer is one of given choices: its rows, and the probabilities read from them.

A choice is written from left to right behind the prompt, in a canvas of masks. Each token has the probability that the
model gives it at the first masked position. All tokens behind the same earlier tokens come from one row, so a request
computes a window for each distinct beginning of its choices. Windows are independent of each other and share forwards.

If rows attend to nothing behind their block, the first forward caches the prompt's whole blocks for later ones.
Otherwise every window computes the prompt again, because its rows attend to the canvas.
"""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TOP_K, Int64
from lopa.runtime.contract.row_statistics import RowStatistics, TokenLogprob, candidates_from_row
from lopa.runtime.errors import ChoicesRefusedError
from lopa.runtime.options import MAX_BRANCHES, DecodingParams
from lopa.runtime.state.answer_state import AnswerState, StopReason
from lopa.runtime.state.choice_scores import ChoiceScores, EncodedChoice, scores_from_logprobs
from lopa.runtime.state.layout import Layout, layout_of_prompt
from lopa.runtime.state.packed_rows import PackedRows, attention_mask

MAX_ROWS = 2048
"""Maximum number of rows of a forward with several packed, about twice the prompt tokens that may join a round. A
window always fits."""

Beginning = tuple[int, ...]
"""Tokens of a choice before one of its tokens."""


class Scoring:
    """The state of one request between forwards. It ends when all choices have their scores."""

    def __init__(
        self, params: DecodingParams, manifest: Manifest, prompt: Int64, choices: Sequence[EncodedChoice]
    ) -> None:
        """Begin with `prompt` [length] and at least one choice."""
        self.params, self.model = params, manifest
        self._prompt, self._choices = prompt, choices
        self.layout = layout_of_prompt(len(prompt), params, manifest.prediction_shift)
        longest = max(len(choice.token_ids) for choice in choices)
        first, size = self.layout.first, self.layout.size
        # The canvas has the blocks in which a decode would write the longest choice.
        end = first + -(-(len(prompt) + longest - first) // size) * size
        self._end = min(end, manifest.dimensions.max_positions)
        self._next_tokens = tokens_by_beginning(choices)
        self._waiting = list(self._next_tokens)
        self._found: dict[tuple[Beginning, int], float] = {}
        """Log-probability of each token behind a beginning."""
        self._best_candidates: dict[Beginning, tuple[TokenLogprob, ...]] = {}
        self.steps = 0
        """Number of forwards."""
        self.answer = self._answer(None)

    def open_round(self, cached: Int64) -> PackedRows:
        """Return the rows of the next forward; `cached` [P] are the positions of the cached rows."""
        count = max(1, min(MAX_BRANCHES, MAX_ROWS // (self._end - len(cached))))
        caches = self.params.attention != "full" and not len(cached) and len(self._waiting) > count
        return rows_of_beginnings(
            self._prompt,
            self._waiting[:count],
            slice(len(cached), self._end),
            self.layout,
            self.params,
            self.model,
            commit=self.layout.first if caches else 0,
        )

    def finish_round(self, _: PackedRows, rows: RowStatistics, *__: object) -> None:
        """Read probabilities from the statistics `rows` [C] of the rows from `open_round`.

        Raises ChoicesRefusedError if the statistics do not contain a token.
        """
        self.steps += 1
        count = len(rows.entropy)
        for number, beginning in enumerate(self._waiting[:count]):
            row = rows[number]
            tokens = sorted(self._next_tokens[beginning])
            logprobs = logprobs_of_tokens(row, tokens, self.params.logits_temperature)
            for token, logprob in zip(tokens, logprobs, strict=True):
                if logprob is None:
                    raise self._missing(beginning, token)
                self._found[beginning, token] = logprob
            if self.params.top_logprobs:
                self._best_candidates[beginning] = candidates_from_row(
                    row, self.params.top_logprobs, (self.model.special_tokens.mask,)
                )
        del self._waiting[:count]
        if not self._waiting:
            of_choices = [self._logprobs_of(choice.token_ids) for choice in self._choices]
            self.answer = self._answer(scores_from_logprobs(self._choices, of_choices, self._canvas))

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit."""
        self.answer = self.answer._replace(stop_reason=reason)

    def write_draft(self) -> None:
        """Leave the answer as it is: without all scores there is none."""

    @property
    def _canvas(self) -> int:
        """Number of positions of the canvas."""
        return self._end - len(self._prompt)

    def _answer(self, scores: ChoiceScores | None) -> AnswerState:
        """Return the most probable choice; an empty answer without `scores`."""
        ids = () if scores is None else scores.best.token_ids
        logprobs = () if scores is None else scores.best.token_logprobs
        return AnswerState(
            tokens=np.array(ids, np.int64),
            unmasked=np.ones(len(ids), np.bool_),
            start=0,
            end=len(ids),
            final=len(ids),
            stop_reason=None if scores is None else "choice",
            generated_positions=self._canvas,
            token_logprobs=np.array(logprobs, np.float32) if self.params.logprobs else None,
            recorded=(lambda places, _: [self._best_candidates[ids[:place]] for place in places])
            if self.params.top_logprobs
            else None,
            scores=scores,
        )

    def _logprobs_of(self, ids: Beginning) -> tuple[float, ...]:
        return tuple(self._found[ids[:place], token] for place, token in enumerate(ids))

    def _missing(self, beginning: Beginning, token: int) -> ChoicesRefusedError:
        written = (*beginning, token)
        number = next(n for n, each in enumerate(self._choices) if each.token_ids[: len(written)] == written)
        return ChoicesRefusedError(
            f"choice {number}, {self._choices[number].text[:80]!r}: its token {token} at index {len(beginning)} is not "
            f"among the {TOP_K} most probable ones",
            expected=f"a bundle that returns logits, since this one returns the {TOP_K} best candidates only",
            remedy="constrain the answer with a regex",
            operator="export the checkpoint with --with-logits",
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
    params: DecodingParams,
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
        mask=np.tile(attention_mask(order, layout, params).ravel(), count),
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
