"""The decoding loop of one request of a model with canvases (DiffusionGemma), from facts of its published code.

A canvas is a block of random tokens. A step draws a token at every position and accepts those with the lowest
entropies. All other positions get new random tokens, and accepted ones may change again, so nothing is final before
the canvas ends. Then its most probable tokens are appended, and encoded causally with the next canvas's first step.

With several branches, a step computes several canvases that accept more and more positions, and the surest one goes on.
As LopaLoop, it knows no session: it returns the rows of a round and takes their statistics.
"""

import time
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Bool, Float32, ForwardSplit, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.round import UnmaskedTokens
from lopa.runtime.decoding.step import CanvasStep, Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.answer_state import AnswerState, StopReason
from lopa.runtime.state.branch import first_branch, length_to_end
from lopa.runtime.state.canvas_rows import rows_of_canvas
from lopa.runtime.state.context import context_from_model
from lopa.runtime.state.layout import layout_of_prompt
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.strategy import Candidates, strategy_from_name
from lopa.runtime.strategy.draws import CANVAS_STREAM, TOKEN_STREAM, uniform_at

_UNIFORM_BITS = 24
"""Bits of a uniform number, so that float32 holds it and none is rounded to 1."""


@dataclass(frozen=True, eq=False)
class _Canvas:
    """A canvas before a step."""

    ids: Int64
    """[B, C]: accepted and random tokens of each branch."""
    steps: int = 0
    """Steps so far, whose last one left its soft embeddings in the session."""
    winner: int = 0
    """Branch that won the last step."""
    history: tuple[Int64, ...] = ()
    """Most probable tokens [C] of the last steps, as many as stability_threshold at most."""


class CanvasLoop:
    """The state of one request between rounds. Every round is one step of a canvas."""

    def __init__(self, params: DecodingParams, model: Manifest, prompt: Int64) -> None:
        """Begin with `prompt` [length], at least one token."""
        network = model.dimensions.canvas
        assert network is not None  # checked by check_canvas
        self.params, self.model, self._network = params, model, network
        context = context_from_model(params, model)
        self._ends = context.ends
        self.layout = layout_of_prompt(len(prompt), params, model.prediction_shift)
        self._branch = first_branch(prompt, self.layout, context)
        self.steps = 0
        self._final = prompt
        """Prompt and finished canvases."""
        self._canvas = _Canvas(self._random_ids()[None])
        self._best: RowStatistics | None = None
        """Statistics of the last step of an unfinished canvas."""
        self.answer = self._answer()

    def open_round(self, cached: Int64) -> PackedRows:
        """Return the rows of the next step; `cached` [P] are the positions of the cached rows."""
        due, canvas, own = self._final[len(cached) :], self._canvas, self.params.own
        size = canvas.ids.shape[1]
        positions = np.arange(len(self._final), len(self._final) + size)
        share = np.float32(own["max_denoising_steps"] - canvas.steps) / np.float32(own["max_denoising_steps"])
        return rows_of_canvas(
            due,
            canvas.ids,
            len(cached),
            self._network.sliding_window,
            self._uniform(positions, TOKEN_STREAM).astype(np.float32),
            soft_first=canvas.winner * size if canvas.steps else None,
            temperature=float(np.float32(own["t_min"]) + np.float32(own["t_max"] - own["t_min"]) * share)
            * self.params.temperature,
        )

    def finish_round(
        self, packed: PackedRows, rows: RowStatistics, split: ForwardSplit | None, seconds: dict[str, float]
    ) -> Step:
        """Process the statistics `rows` [B x C] of the round: accept drawn tokens, and end the canvas if it is done.

        The branch with the lowest mean entropy wins, the first among equal ones.
        """
        began, own, canvas = time.perf_counter(), self.params.own, self._canvas
        self.steps += 1
        branches, size = canvas.ids.shape
        means = [float(np.mean(each)) for each in rows.entropy.reshape(branches, size)]
        winner = means.index(min(means))
        every, rows = rows, rows[winner * size : (winner + 1) * size]
        assert rows.drawn_ids is not None  # contract 2
        best = rows.topk_ids[:, 0]
        sets = accepted_sets(rows.entropy, own["entropy_bound"], self.params.branches)
        accepted, renoised = sets[0], np.where(sets, rows.drawn_ids, self._random_ids())
        is_stable = len(canvas.history) == own["stability_threshold"] and all((best == e).all() for e in canvas.history)
        is_confident = np.mean(rows.entropy, dtype=np.float32) < np.float32(own["confidence_threshold"])
        record = CanvasStep(rows.drawn_ids, accepted, best, renoised[0], means[winner])
        if (is_stable and is_confident) or canvas.steps + 1 == own["max_denoising_steps"]:
            self._final, self._best = np.concatenate([self._final, best]), None
            self._canvas = _Canvas(self._random_ids()[None])
        else:
            kept = own["stability_threshold"]
            history = (*canvas.history, best)[-kept:] if kept else ()
            self._canvas, self._best = _Canvas(renoised, canvas.steps + 1, winner, history), rows
        self.answer = self._answer()
        seconds["select"], seconds["spawn"] = time.perf_counter() - began, 0.0
        places = np.flatnonzero(accepted)
        positions = packed.sampled[winner]
        return Step(
            self.steps,
            (self._branch,) * branches,
            packed,
            tuple(-mean for mean in means),
            winner,
            UnmaskedTokens(accepted, positions[places], rows.drawn_ids[places], entropies=rows.entropy[places]),
            (),
            seconds,
            split,
            candidates=tuple(self._candidates(every[each * size : (each + 1) * size]) for each in range(branches)),
            unmasked_branches=np.full(len(places), winner),
            canvas=record,
        )

    def stop(self, reason: StopReason) -> None:
        """End the request from outside, e.g. at a time limit."""
        self.answer = self.answer._replace(stop_reason=reason, returns_generated=False)

    def write_draft(self) -> None:
        """Return the most probable tokens of the unfinished canvas as part of the answer. Nothing follows."""
        if self._best is not None and self.answer.drafted is None:
            drafted = self._candidates(self._best)
            self._final, self._best = np.concatenate([self._final, drafted.tokens]), None
            reason = self.answer.stop_reason
            self.answer = self._answer()._replace(stop_reason=reason, returns_generated=False, drafted=drafted)

    def _answer(self) -> AnswerState:
        """Return the finished canvases, and behind them the most probable tokens of the last step as a draft."""
        start, finished = self.layout.prompt, len(self._final) - self.layout.prompt
        draft = np.empty(0, np.int64) if self._best is None else self._best.topk_ids[:, 0]
        tokens = np.concatenate([self._final, draft])
        length = length_to_end(self._final[start:], self._ends)
        final = min(finished if length is None else length, self.params.max_new_tokens)
        reason: StopReason | None = None if finished < self.params.positions else "length"
        if length is not None:
            reason = "eos" if length == final else "length"
            tokens[start + length : start + finished] = self.model.special_tokens.pad
        return AnswerState(
            tokens=tokens,
            unmasked=np.ones(len(tokens), np.bool_),
            start=start,
            end=len(tokens),
            final=final,
            stop_reason=reason,
            generated_positions=len(tokens) - start,
            returns_generated=self.params.reference and reason is not None,
            pads=int(np.count_nonzero(tokens[start : start + final] == self.model.special_tokens.pad)),
        )

    def _random_ids(self) -> Int64:
        """Return the random ids that the next step sees, [C]."""
        positions = np.arange(len(self._final), len(self._final) + self._network.canvas_length)
        return (self._uniform(positions, CANVAS_STREAM) * self.model.dimensions.vocab_size).astype(np.int64)

    def _uniform(self, positions: Int64, stream: int) -> Float32:
        """Return numbers below 1 for the next step, float64 that float32 can hold."""
        numbers = uniform_at(positions, 1, seed=self.params.seed, step=self.steps + 1, stream=stream)[..., 0]
        scaled: Float32 = np.floor(np.ldexp(numbers, _UNIFORM_BITS))
        return np.ldexp(scaled, -_UNIFORM_BITS)

    @staticmethod
    def _candidates(rows: RowStatistics) -> Candidates:
        return Candidates(rows.topk_ids[:, 0], np.exp(rows.topk_logprobs[:, 0]), -rows.entropy, entropies=rows.entropy)


def accepted_positions(entropy: Float32, bound: float) -> Bool:
    """Return the positions of a canvas that a step accepts, [C].

    They are those of the lowest entropies, as long as these sum to at most `bound` nats, excluding the largest.
    """
    order = np.argsort(entropy, kind="stable")
    ordered = entropy[order]
    sums = np.cumsum(ordered, dtype=np.float64).astype(np.float32)
    accepted = np.zeros(len(entropy), np.bool_)
    accepted[order] = sums - ordered <= np.float32(bound)
    return accepted


def accepted_sets(entropy: Float32, bound: float, count: int) -> Bool:
    """Return the sets of accepted positions of at most `count` branches, [B, C], each with twice the bound before it.

    The first one is the published one. Equal sets are one branch.
    """
    sets = [accepted_positions(entropy, bound)]
    for doubled in range(1, count):
        found = accepted_positions(entropy, bound * 2.0**doubled)
        if (found != sets[-1]).any():
            sets.append(found)
    return np.stack(sets)


def check_canvas(params: DecodingParams, manifest: Manifest) -> None:
    """Raise BadInputError unless the strategy fits the model: canvases for DiffusionGemma, others for other models."""
    network, has_canvas = manifest.dimensions.canvas, strategy_from_name(params.strategy).canvas
    if has_canvas == (network is not None):
        if network is not None and params.block_size != network.canvas_length:
            raise BadInputError(
                f"block_size {params.block_size} for a model with canvases of {network.canvas_length} tokens",
                expected=f"block_size {network.canvas_length}",
                remedy="remove block_size",
            )
        return
    raise BadInputError(
        f"strategy {params.strategy!r} for a model of the architecture {manifest.architecture!r}",
        expected="strategy canvas, since this model has no masked positions"
        if network is not None
        else "another strategy, since this model denoises no canvases",
        remedy="remove strategy, or use another bundle",
    )
