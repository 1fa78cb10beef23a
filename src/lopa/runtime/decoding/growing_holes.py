"""Holes whose lengths the model decides while it fills them.

A step may write an expand token, which becomes two masked positions, or an end of text, which is deleted. Source:
DreamLM/DreamOn, batch_generate_with_expand_as_token. Unlike there, every hole has its own limit and expansions, and
special tokens in the given text have no effect.
"""

import operator
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.decoding.constrained import copied_rows, sorted_candidates
from lopa.runtime.decoding.extension import Extension, LoopState, Start
from lopa.runtime.decoding.hole_filling import HoleFilling
from lopa.runtime.decoding.round import Proposals, RoundEnd, RoundOutcome
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.answer_state import AnswerState
from lopa.runtime.state.branch import Branch, is_end
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.strategy import strategy_from_name
from lopa.runtime.strategy.strategy import identity
from lopa.runtime.text.encoded_holes import EncodedHoles


class GrowingHoles(HoleFilling):
    """Filling of holes that begin with their shortest length and change it.

    A hole may expand as often as it has positions at most. Deleted positions give no expansion back, so decoding ends.
    """

    def __init__(self, holes: EncodedHoles, ends: tuple[int, ...]) -> None:
        """Fill `holes`, the longest ones; the tokens `ends` are deleted."""
        super().__init__(holes.lengths[:1])
        self._ends = ends
        self._most = [end - start for start, end in holes.holes]
        self._expansions = self._most
        """Number of expand tokens that each hole may still write."""

    def extension(self) -> Extension:
        """Return the extension of the loop."""
        return replace(super().extension(), unmasked=self.unmasked)

    def start(self, context: Context, branches: tuple[Branch, ...]) -> Start:
        """Return constants with which the expand token may be written, and the shortest branch."""
        return super().start(replace(context, holes_grow=True), branches)

    def rows(self, loop: LoopState, packed: PackedRows, rows: RowStatistics) -> RowStatistics:
        """Return the statistics [C] of the only branch, without the expand token where a hole may not grow."""
        token, positions = loop.context.expand_token, packed.sampled[0]
        held = np.zeros(len(positions), np.bool_)
        for (start, end), most, left in zip(self._lengths[0].holes, self._most, self._expansions, strict=True):
            held |= (positions >= start) & (positions < end) & (end - start >= most or not left)
        if token is not None and held.any():
            received, rows = rows, copied_rows(rows, loop.context.params)
            for place in np.flatnonzero(held):
                column = packed.kept_columns + int(place)
                put_rows(rows, column, _row_without(received[column], token, loop.context))
        return super().rows(loop, packed, rows)

    def unmasked(self, outcome: RoundOutcome, _: Proposals, context: Context) -> RoundOutcome:
        """Return the outcome of the only branch with the lengths of holes that its new tokens ask for.

        With the parameters's drop_after_eos, masked positions behind a deleted token in its hole are deleted too. The
        positions at the edges of holes stay.
        """
        branch, holes = outcome.branch, self._lengths[0]
        copies = np.ones(len(branch.tokens), np.int64)
        was_masked = ~branch.unmasked
        was_masked[outcome.unmasked.positions] = True
        was_masked[list(holes.boundary_token_at)] = False
        expands = was_masked & (branch.tokens == context.expand_token)
        deleted = was_masked & is_end(branch.tokens, self._ends)
        if not (expands | deleted).any():
            return outcome
        expansions = []
        for (start, end), most, left in zip(holes.holes, self._most, self._expansions, strict=True):
            own = slice(start, end)
            if context.params.drop_after_eos:
                deleted[own] |= was_masked[own] & np.logical_or.accumulate(deleted[own])
            copies[own] -= deleted[own]
            longer = start + np.flatnonzero(expands[own] & ~deleted[own])[: min(left, most - int(copies[own].sum()))]
            copies[longer] += 1
            expansions.append(left - len(longer))
        masked = expands & ~deleted
        branch = _resized(branch, copies, masked, context)
        sizes = [end - start for start, end in branch.layout.holes]
        self._expansions, self._lengths = expansions, (holes.resized(sizes, context.mask_token),)
        new = np.cumsum(copies) - copies
        places = {int(old): int(new[old]) for old in np.flatnonzero((copies == 1) & ~masked)}
        return outcome._replace(branch=branch, places=places)

    def answer(self, loop: LoopState, answer: AnswerState, end: RoundEnd | None) -> AnswerState:
        """Return the answer of the holes; it ends early if the model ended every hole before its maximum."""
        answer = super().answer(loop, answer, end)
        sizes = [end - start for start, end in self._lengths[0].holes]
        if answer.stop_reason != "length" or any(map(operator.ge, sizes, self._most)):
            return answer
        return answer._replace(stop_reason="eos")


def hole_filling(holes: EncodedHoles, ends: tuple[int, ...]) -> Extension:
    """Return the extension that fills `holes`, by a model with these tokens that end an answer."""
    return (GrowingHoles(holes, ends) if holes.grows else HoleFilling(holes.lengths)).extension()


def check_growth(params: DecodingParams) -> None:
    """Raise BadInputError for a strategy that keeps values by position, which move when a hole grows."""
    if strategy_from_name(params.strategy).rescore is not identity:
        raise BadInputError(
            f"strategy {params.strategy!r} for holes whose lengths the model decides",
            expected="a strategy that keeps no values from step to step, e.g. vanilla, threshold or eb",
            remedy="choose such a strategy, or give each hole one length",
        )


def _row_without(row: RowStatistics, token: int, context: Context) -> RowStatistics:
    """Return `row` [K] as if `token` did not exist: the other probabilities sum to 1.

    With p the probability of `token` and H the entropy, the entropy becomes (H + p ln p) / (1 - p) + ln(1 - p). A token
    that is not among the K best counts as improbable; its row stays.
    """
    keep = row.topk_ids != token
    if keep.all():
        return row
    logprobs = row.topk_logprobs.astype(np.float64)
    own = float(logprobs[~keep][0])
    rest = max(-np.expm1(own), np.exp(logprobs[keep]).sum(), np.finfo(np.float64).tiny)
    entropy = (float(row.entropy) + np.exp(own) * own) / rest + np.log(rest)
    logits = row.logits
    if logits is not None and context.params.draws_from_logits:
        logits = np.where(np.arange(len(logits)) == token, np.float32(-np.inf), logits)
    kept = replace(row, topk_logprobs=(logprobs - np.log(rest)).astype(np.float32))
    return RowStatistics(
        *sorted_candidates(kept, keep), np.clip(entropy, 0.0, np.log(context.vocab_size)).astype(np.float32), logits
    )


def _resized(branch: Branch, copies: Int64, masked: Bool, context: Context) -> Branch:
    """Return `branch` with each position repeated `copies` [positions] times, and those in `masked` masked again."""
    new = np.concatenate([[0], np.cumsum(copies)])
    source = np.repeat(np.arange(len(copies)), copies)
    spans = tuple((int(new[start]), int(new[end])) for start, end in branch.layout.holes)
    layout = replace(branch.layout, end=spans[-1][1], holes=spans)
    tokens, unmasked = branch.tokens[source], branch.unmasked[source] & ~masked[source]
    tokens[~unmasked] = context.mask_token
    logprobs = None
    if branch.logprobs is not None:
        logprobs = np.where(unmasked, branch.logprobs[source], np.float32(np.nan))
    masks = int(np.count_nonzero(~unmasked[branch.blocks[-1].start : layout.end]))
    blocks = (*branch.blocks[:-1], branch.blocks[-1]._replace(end=layout.end, masks=masks))
    return branch.changed(tokens=tokens, unmasked=unmasked, blocks=blocks, layout=layout, logprobs=logprobs)
