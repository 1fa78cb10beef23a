"""Holes whose lengths the model decides while it fills them.

A step may write an expand token, which becomes two masked positions, or an end of text, which is deleted. Source:
DreamLM/DreamOn, batch_generate_with_expand_as_token. Unlike there, every hole has its own limit and expansions, and
special tokens in the given text have no effect.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.contract.row_statistics import RowStatistics, put_rows
from lopa.runtime.decoding.kept_candidates import copied_rows, sorted_candidates
from lopa.runtime.errors import BadInputError
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.branch import Branch, is_end
from lopa.runtime.state.context import Context
from lopa.runtime.state.holes import Holes
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.strategy import strategy_from_name
from lopa.runtime.strategy.strategy import identity


@dataclass(frozen=True)
class GrowingHoles:
    """The holes of a decode, at their current lengths."""

    holes: Holes
    most: tuple[int, ...]
    """Maximum length of each hole."""
    expansions: tuple[int, ...]
    """Number of expand tokens that each hole may still write. Deleted positions give none back, so decoding ends."""
    ends: tuple[int, ...]
    """Tokens that are deleted."""

    @property
    def is_shorter(self) -> tuple[bool, ...]:
        """True for each hole that is shorter than its maximum."""
        return tuple(end - start < most for (start, end), most in zip(self.holes.holes, self.most, strict=True))

    @property
    def may_expand(self) -> tuple[bool, ...]:
        """True for each hole that may become longer."""
        return tuple(shorter and left > 0 for shorter, left in zip(self.is_shorter, self.expansions, strict=True))


class Resized(NamedTuple):
    """The state of a decode after a step changed the lengths of holes."""

    growing: GrowingHoles
    branch: Branch
    places: dict[int, int]
    """New position of every position that is still there."""


def growing_holes(holes: Holes, ends: tuple[int, ...]) -> GrowingHoles:
    """Return the holes at the length with which they begin. A hole may expand as often as it has positions at most.

    The tokens `ends` are deleted.
    """
    most = tuple(end - start for start, end in holes.holes)
    return GrowingHoles(holes.lengths[0], most, most, ends)


def check_growth(plan: DecodingPlan) -> None:
    """Raise BadInputError for a strategy that keeps values by position, which move when a hole grows."""
    if strategy_from_name(plan.strategy).rescore is not identity:
        raise BadInputError(
            f"strategy {plan.strategy!r} for holes whose lengths the model decides",
            expected="a strategy that keeps no values from step to step, e.g. vanilla, threshold or eb",
            remedy="choose such a strategy, or give each hole one length",
        )


def rows_without_expansion(
    packed: PackedRows, rows: RowStatistics, growing: GrowingHoles, context: Context
) -> RowStatistics:
    """Return the statistics `rows` [C] of the only branch, without the expand token where a hole may not grow."""
    token, positions = context.expand_token, packed.sampled[0]
    held = np.zeros(len(positions), np.bool_)
    for (start, end), may in zip(growing.holes.holes, growing.may_expand, strict=True):
        held |= (positions >= start) & (positions < end) & (not may)
    if token is None or not held.any():
        return rows
    result = copied_rows(rows, context.plan)
    for place in np.flatnonzero(held):
        column = packed.kept_columns + int(place)
        put_rows(result, column, _row_without(rows[column], token, context))
    return result


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
    if logits is not None and context.plan.draws_from_logits:
        logits = np.where(np.arange(len(logits)) == token, np.float32(-np.inf), logits)
    kept = replace(row, topk_logprobs=(logprobs - np.log(rest)).astype(np.float32))
    return RowStatistics(
        *sorted_candidates(kept, keep), np.clip(entropy, 0.0, np.log(context.vocab_size)).astype(np.float32), logits
    )


def resize(growing: GrowingHoles, branch: Branch, written: Int64, context: Context) -> Resized | None:
    """Return the decode after a step of its `branch` that unmasked the positions `written` [n], or None if no token
    changes a length.

    With the plan's drop_after_eos, masked positions behind a deleted token in its hole are deleted too. The positions
    of seams stay.
    """
    copies = np.ones(len(branch.tokens), np.int64)
    was_masked = ~branch.unmasked
    was_masked[written] = True
    was_masked[list(growing.holes.seam_tokens)] = False
    expands = was_masked & (branch.tokens == context.expand_token)
    deleted = was_masked & is_end(branch.tokens, growing.ends)
    if not (expands | deleted).any():
        return None
    expansions = []
    for (start, end), most, left in zip(growing.holes.holes, growing.most, growing.expansions, strict=True):
        own = slice(start, end)
        if context.plan.drop_after_eos:
            deleted[own] |= was_masked[own] & np.logical_or.accumulate(deleted[own])
        copies[own] -= deleted[own]
        longer = start + np.flatnonzero(expands[own] & ~deleted[own])[: min(left, most - int(copies[own].sum()))]
        copies[longer] += 1
        expansions.append(left - len(longer))
    return _resized(replace(growing, expansions=tuple(expansions)), branch, copies, expands & ~deleted, context)


def _resized(growing: GrowingHoles, branch: Branch, copies: Int64, masked: Bool, context: Context) -> Resized:
    """Return the decode with each position repeated `copies` [positions] times, and those in `masked` masked again."""
    new = np.concatenate([[0], np.cumsum(copies)])
    source = np.repeat(np.arange(len(copies)), copies)
    spans = tuple((int(new[start]), int(new[end])) for start, end in branch.layout.holes)
    layout = replace(branch.layout, end=spans[-1][1], holes=spans)
    tokens, unmasked = branch.tokens[source], branch.unmasked[source] & ~masked[source]
    tokens[~unmasked] = context.mask_token
    logprobs = None
    if branch.logprobs is not None:
        logprobs = np.where(unmasked, branch.logprobs[source], np.float32(np.nan))
    last = branch.blocks[-1]
    masks = int(np.count_nonzero(~unmasked[last.start : layout.end]))
    return Resized(
        replace(growing, holes=growing.holes.resized([end - start for start, end in spans], context.mask_token)),
        replace(
            branch,
            tokens=tokens,
            unmasked=unmasked,
            blocks=(*branch.blocks[:-1], replace(last, end=layout.end, masks=masks)),
            layout=layout,
            logprobs=logprobs,
        ),
        {int(old): int(new[old]) for old in np.flatnonzero((copies == 1) & ~masked)},
    )
