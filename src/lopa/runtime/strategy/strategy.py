"""The record of a strategy: eight stages, traits and options (docs/concepts/decoding.md, "Eight stages").

A step of a round goes through the stages in this order:

1. `rescore` changes a branch's statistics before candidates are chosen from them, and updates the branch's memory.
2. `branch_confidence` returns the value by which a branch wins the round.
3. `eligible` returns the positions that may be unmasked because they are certain.
4. `threshold` returns the value that each position has to exceed, and `rank` orders the positions.
5. `cut` returns how many of the certain positions are unmasked, by rank. `minimum` returns how many are unmasked in any
   case.
6. `edit` returns the unmasked positions whose token is replaced by the new candidate.
7. `remask` returns the unmasked positions to mask again.
8. `lookaheads` returns the masked positions whose candidates make the next round's lookahead branches.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.records import record
from lopa.runtime.contract.row_statistics import Index, RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.options.option import Confidence, Option
from lopa.runtime.strategy.topk_ties import indices_of_topk

# The arguments of stages. They hold arrays, so that a stage depends on no branch, session or grammar.


@record
class Candidates:
    """One candidate token for each sampled position. All arrays have the same shape, e.g. [B, Q]."""

    tokens: Int64
    probabilities: Float32
    confidences: Float32
    logprobs: Float32 | None = None
    """Log-probabilities of the tokens before top_k and top_p; None if not requested."""
    entropies: Float32 | None = None
    """Entropies in nats after top_k and top_p; None in candidates that no forward proposed."""

    def __getitem__(self, index: Index) -> "Candidates":
        logprobs = None if self.logprobs is None else self.logprobs[index]
        entropies = None if self.entropies is None else self.entropies[index]
        return Candidates(self.tokens[index], self.probabilities[index], self.confidences[index], logprobs, entropies)


@runtime_checkable
class Memory(Protocol):
    """State that a strategy keeps for a branch between steps: a frozen record, copied with the branch's tokens."""

    def before(self, end: int) -> Self:
        """Return this state without the positions from `end` on, which are dropped."""
        ...


@record
class BranchView:
    """The n masked positions of a branch that are judged or may get a lookahead token, ascending. n is at least 1."""

    positions: Int64
    """[n]: absolute positions."""
    candidates: Candidates
    """[n]: candidates of this round's forward."""
    blocks: tuple[tuple[int, int], ...]
    """Start and end of each active block of the branch, ascending."""
    lookahead: float | None
    """Confidence with which the branch's lookahead token was proposed; None for the anchor."""
    memory: Memory | None
    """Memory of the branch after the first stage of this round."""


@record
class RoundView:
    """Candidates that a round's forward proposed for all branches, the anchor last."""

    positions: tuple[Int64, ...]
    """Sampled masked positions of each branch, ascending."""
    candidates: tuple[Candidates, ...]
    """Candidates of each branch at its `positions`."""
    winner: int
    """Index of the winning branch."""


@record
class BlockView:
    """The n sampled positions of an active block that may be unmasked now, ascending."""

    positions: Int64
    """[n]: absolute positions."""
    candidates: Candidates
    """[n]: candidates of this step. A grammar allows the one at the answer's first masked position."""
    masked: Bool
    """[n]: True for masked positions whose candidate no grammar rejects."""
    fully_activated: bool
    """True if the block before is nearly unmasked, so that this block unmasks at least one position per step."""
    rounds: int
    """Earlier rounds in which the block was active."""
    leads: bool
    """True if the answer's first masked position is in this block."""
    memory: Memory | None
    """Memory of the branch after the first stage of this step."""
    round: RoundView
    branch: int
    """Index of the block's branch in the round."""


@dataclass(frozen=True)
class RemaskView:
    """The n unmasked positions of an active block that this step verified again, ascending."""

    probabilities: Floats
    """[n]: probabilities of their tokens, from shadow rows, which do not attend to these tokens."""
    accepted: int
    """Number of positions that the block unmasked in this step, without positions behind an end of text. The n
    positions exclude them."""
    before: int
    """Number of positions that the block unmasked in the step before."""
    limit: int
    """Maximum number of positions that the answer may still remask."""


@dataclass(frozen=True)
class EditView:
    """The n unmasked positions of an active block that this step may edit, ascending. The prompt is not among them."""

    tokens: Int64
    """[n]: current tokens."""
    candidates: Candidates
    """[n]: tokens that the positions' own rows propose instead."""


def match_positions(known: Int64, positions: Int64) -> tuple[Bool, Int64]:
    """Return which of `positions` [n] are among `known` [m], both ascending, and their indices there, [n].

    The index of a position that is not there is 0.
    """
    places = np.minimum(np.searchsorted(known, positions), max(len(known) - 1, 0))
    found: Bool = known[places] == positions if len(known) else np.zeros(len(positions), np.bool_)
    return found, np.where(found, places, 0)


# The default stages


def identity(
    rows: RowStatistics,
    positions: Int64,  # noqa: ARG001
    memory: Memory | None,
    params: DecodingParams,  # noqa: ARG001
) -> tuple[RowStatistics, Memory | None]:
    """Return the rows and the memory unchanged."""
    return rows, memory


def mean_confidence(branch: BranchView, params: DecodingParams) -> float:  # noqa: ARG001
    """Return the mean confidence over all masked positions (LoPA)."""
    # In every round of every branch: the method mean, which gives the same bits, takes three times as long.
    return float(np.add.reduce(branch.candidates.confidences) / len(branch.candidates.confidences))


def all_masked(block: BlockView, params: DecodingParams) -> Bool:  # noqa: ARG001
    """Return every masked position."""
    return block.masked


def constant(block: BlockView, params: DecodingParams) -> Float32:
    """Return skip_threshold for all positions; with sliding blocks, minus entropy_threshold."""
    return np.full(len(block.positions), constant_limit(params))


def constant_limit(params: DecodingParams) -> np.float32:
    """Return the threshold of `constant`."""
    return np.float32(-params.entropy_threshold if params.slides else params.skip_threshold)


def by_confidence(block: BlockView, params: DecodingParams) -> Floats:  # noqa: ARG001
    """Rank the most confident position first."""
    return np.asarray(block.candidates.confidences, np.float64)


def confidences_by_distance(entropy: Float32, positions: Int64, params: DecodingParams) -> Float32:
    """Return the confidences [..., n] of sliding blocks: minus entropy, minus a penalty for distance (WeDLM).

    The penalty is distance_penalty for each position behind the first sampled one.
    """
    distances = (positions - positions[..., :1]).astype(np.float32)
    scores: Float32 = entropy + np.float32(params.distance_penalty) * distances
    return -scores


def no_limit(ranked: Int64, block: BlockView, params: DecodingParams) -> int:  # noqa: ARG001
    """Return the number of all certain positions."""
    return len(ranked)


def share_of_step(block: BlockView, params: DecodingParams) -> int:
    """Return the step's share of a block that is unmasked in block_steps equal steps (LLaDA, SDAR)."""
    return share_after_rounds(block.rounds, params)


def share_after_rounds(rounds: int, params: DecodingParams) -> int:
    """Return `share_of_step` for a block that was active in `rounds` rounds. The first ones take the remainder, one
    position each.
    """
    each, more = divmod(params.block_size, params.block_steps)
    return max(1, each + (rounds < more))


def most_confident(branch: BranchView, count: int, params: DecodingParams) -> Int64:  # noqa: ARG001
    """Return the most confident positions, ties by position (LoPA)."""
    return (-branch.candidates.confidences).argsort(kind="stable")[:count]


# The record of a strategy

Rescore = Callable[
    [RowStatistics, Int64, Memory | None, DecodingParams],
    tuple[RowStatistics, Memory | None],
]
"""Function of the rows [n] at ascending positions [n] of a branch, and its memory. It returns new rows [n] and the new
memory.
"""
BranchConfidence = Callable[[BranchView, DecodingParams], float]
"""Function that returns the confidence of a branch before any of its positions is unmasked. The largest wins the round,
and the first among equal ones. A branch without masked positions has 1.0 and is not passed.
"""
Eligible = Callable[[BlockView, DecodingParams], Bool]
"""Function that returns a mask [n], True for the positions of a block that may be certain."""
Threshold = Callable[[BlockView, DecodingParams], Float32]
"""Function that returns the limits [n] that the certainty of each position has to exceed."""
Rank = Callable[[BlockView, DecodingParams], Floats]
"""Function that returns rank values [n]. The largest ranks first, and the lower position among equal values."""
Cut = Callable[[Int64, BlockView, DecodingParams], int]
"""Function of the indices [m] of a block's certain positions by rank. It returns how many of them are unmasked."""
Minimum = Callable[[BlockView, DecodingParams], int]
"""Function that returns the minimum number of positions that a fully activated block unmasks, certain or not."""
Remask = Callable[[RemaskView, DecodingParams], Bool]
"""Function that returns a mask [n], True for the positions of a block to mask again."""
Edit = Callable[[EditView, DecodingParams], Bool]
"""Function that returns a mask [n], True for the positions of a block whose candidate replaces their token."""
Lookaheads = Callable[[BranchView, int, DecodingParams], Int64]
"""Function of the winner after unmasking, at the n positions that may get a lookahead token, and a count of at least 1.
It returns the indices [m] of at most that many of them, best first. Each makes a branch of the next round.
"""


STAGES = (
    *("rescore", "branch_confidence", "eligible", "threshold", "rank"),
    *("cut", "minimum", "edit", "remask", "lookaheads"),
)
"""Fields of a Strategy that are functions of a step."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Rules for the positions that a step unmasks. Register one with `register_strategy` or as an entry point."""

    name: str
    summary: str
    """One-line description for help texts."""

    rescore: Rescore = identity
    branch_confidence: BranchConfidence = mean_confidence
    eligible: Eligible = all_masked
    threshold: Threshold = constant
    rank: Rank = by_confidence
    cut: Cut = no_limit
    minimum: Minimum = share_of_step
    remask: Remask | None = None
    """Stage 7. It is None if the strategy never remasks; the options remask_threshold and remask_limit are then
    rejected.
    """
    edit: Edit | None = None
    """Stage 6. It is None if the strategy never edits; the options editing_threshold and editing_limit are then
    rejected.
    """
    lookaheads: Lookaheads = most_confident

    options: tuple[Option, ...] = ()
    """Options that only this strategy has. Stages read their values from `params.own`."""

    pipelined: bool = False
    """True if several blocks may be unmasked at a time, False if one by one."""
    looks_ahead: bool = False
    """True if lookahead branches may be verified in the anchor's forward."""
    default_branches: int | None = 1
    """Default number of branches; None for the device's default (lopa.runtime.generation_config.resolve)."""
    block_steps: bool = False
    """True if the option `block_steps` determines the minimum number of positions per step."""
    whole: bool = False
    """True if the whole answer is one block and nothing is cached."""
    filters_greedy: bool = False
    """True if top_k and top_p also apply to greedy decoding."""
    from_one_branch: bool = True
    """True if a step depends on the statistics of one branch only, which `speculative` needs."""
    unmasks_first: bool = True
    """True if the option unmask_first_masked is allowed."""
    remask_threshold: float = 0.0
    """Default of remask_threshold; 0 for no remasking."""
    without: tuple[str, ...] = ()
    """Common options that no stage of this strategy reads."""
    confidence: Callable[[Mapping[str, Any]], Confidence] | None = None
    """Function from the strategy's own options to the confidence measure; None to use the option `confidence`."""
    canvas: bool = False
    """True if canvases of random tokens are denoised (lopa.runtime.decoding.canvas_loop), which needs a model for it.
    No stage is asked."""
    overwrites_unmasked: bool = True
    """True if the published loop overwrites unmasked positions when too few are masked (docs/concepts/decoding.md)."""

    @cached_property
    def takes_all_certain(self) -> bool:
        """True if a step unmasks all positions above `constant_limit`, and ranks positions only in blocks with fewer of
        them than `share_after_rounds`.
        """
        stages = self.eligible, self.threshold, self.cut, self.minimum
        return stages == (all_masked, constant, no_limit, share_of_step)

    @property
    def unread(self) -> tuple[str, ...]:
        """Common options that have no effect with this strategy, because of its stages or its order of blocks."""
        pace = () if self.pipelined else ("block_add_threshold", "decoded_token_threshold")
        return (*self.without, *pace, *(("block_size",) if self.whole else ()))

    @property
    def default_cache(self) -> str | None:
        """Cache that the strategy needs; None for the model's default."""
        if self.whole:
            return "none"
        return "blocks" if self.pipelined or self.remask_threshold else None


# Stages 3 to 5 for one block


def unmasked_positions(block: BlockView, strategy: Strategy, params: DecodingParams) -> Bool:
    """Return the positions of a block that a step unmasks, [n], according to stages 3 to 5 of `strategy`.

    They are the first by rank of the eligible positions above the threshold, up to the cut. A fully activated block
    with fewer of them than the minimum unmasks the first by rank of all its masked positions instead. With
    unmask_first_masked the answer's first masked position is certain and ranks first.
    """
    ranks = np.asarray(strategy.rank(block, params), np.float64)
    certain = (
        strategy.eligible(block, params)
        & block.masked
        & (certainties(block.candidates, params) > strategy.threshold(block, params))
    )
    first = block.masked.nonzero()[0][:1] if params.unmask_first_masked and block.leads else _NONE
    if len(first):
        ranks, certain[first] = ranks.copy(), True
        ranks[first] = np.inf
    ranked = _ranked(ranks, certain)
    chosen = ranked[: max(strategy.cut(ranked, block, params), len(first))]
    minimum = strategy.minimum(block, params)
    if len(chosen) < minimum and block.fully_activated and np.count_nonzero(block.masked):
        overwrites = params.overwrites_unmasked and strategy.overwrites_unmasked
        chosen = (_first_with_ties if overwrites else _best)(ranks, block.masked, minimum)
    result = np.zeros(len(block.positions), np.bool_)
    result[chosen] = True
    return result


def certainties(candidates: Candidates, params: DecodingParams) -> Float32:
    """Return the values that are compared with the threshold, [n]: probabilities, or confidences of sliding blocks."""
    return candidates.confidences if params.slides else candidates.probabilities


_NONE = np.zeros(0, np.int64)


def _ranked(ranks: Floats, among: Bool) -> Int64:
    found = among.nonzero()[0]
    return found[(-ranks[found]).argsort(kind="stable")]


def _best(ranks: Floats, among: Bool, count: int) -> Int64:
    return _ranked(ranks, among)[:count]


def _first_with_ties(ranks: Floats, among: Bool, count: int) -> Int64:
    """Return the first `count` positions of `among` by rank.

    If there are fewer, add the positions that torch.topk would return (docs/reference/algorithm.md, section 12).
    """
    return indices_of_topk(np.where(among, ranks, -np.inf), min(count, len(ranks)))
