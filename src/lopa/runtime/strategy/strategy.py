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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lopa.runtime.checked_values import check_bool, check_choice, check_float, check_int
from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.options.choices import Confidence
from lopa.runtime.strategy.credit import Credit, add_credit, credit_after
from lopa.runtime.strategy.divergences import Divergences, divergences_after
from lopa.runtime.strategy.schedule import ScheduleStep, count_of_step, drawn_in_step, next_step, noise_of_step
from lopa.runtime.strategy.topk_ties import indices_of_topk
from lopa.runtime.strategy.views import BlockView, BranchView, EditView, Memory, RemaskView

LEAP_DISTANCE, LEAP_PROBABILITY = 4, 0.75
"""LocalLeap: positions to either side of an anchor, and the probability that suffices there."""
BEFORE_FIRST_STEP = 30
"""Number of positions that a block counts as unmasked before its first step (WINO)."""


# Stage 1: rescore


def identity(
    rows: RowStatistics,
    positions: Int64,  # noqa: ARG001
    memory: Memory | None,
    params: DecodingParams,  # noqa: ARG001
) -> tuple[RowStatistics, Memory | None]:
    """Return the rows and the memory unchanged."""
    return rows, memory


def with_divergences(
    rows: RowStatistics,
    positions: Int64,
    memory: Memory | None,
    params: DecodingParams,  # noqa: ARG001
) -> tuple[RowStatistics, Memory | None]:
    """Return the rows unchanged and record their KL divergence from the step before (KLASS)."""
    assert memory is None or isinstance(memory, Divergences)
    return rows, divergences_after(memory, rows, positions)


def with_credit(
    rows: RowStatistics, positions: Int64, memory: Memory | None, params: DecodingParams
) -> tuple[RowStatistics, Memory | None]:
    """Raise the probability of tokens that were the best in earlier steps (CreditDecoding)."""
    assert memory is None or isinstance(memory, Credit)
    credit = credit_after(memory, rows, positions)
    return add_credit(rows, credit, params.logits_temperature), credit


def on_schedule(
    rows: RowStatistics, positions: Int64, memory: Memory | None, params: DecodingParams
) -> tuple[RowStatistics, Memory | None]:
    """Return the rows unchanged and record the step of the schedule (Dream)."""
    assert memory is None or isinstance(memory, ScheduleStep)
    return rows, next_step(memory, positions, params)


# Stage 2: branch confidence


def mean_confidence(branch: BranchView, params: DecodingParams) -> float:  # noqa: ARG001
    """Return the mean confidence over all masked positions (LoPA)."""
    # In every round of every branch: the method mean, which gives the same bits, takes three times as long.
    return float(np.add.reduce(branch.candidates.confidences) / len(branch.candidates.confidences))


# Stage 3: eligible


def all_masked(block: BlockView, params: DecodingParams) -> Bool:  # noqa: ARG001
    """Return every masked position."""
    return block.masked


def stable(block: BlockView, params: DecodingParams) -> Bool:
    """Return the positions whose distribution hardly changed in the last steps (KLASS)."""
    assert isinstance(block.memory, Divergences)
    return block.memory.are_stable(block.positions, params.own["kl_threshold"])


# Stage 4: threshold


def constant(block: BlockView, params: DecodingParams) -> Float32:
    """Return skip_threshold for all positions; with sliding blocks, minus entropy_threshold."""
    limit = -params.entropy_threshold if params.slides else params.skip_threshold
    return np.full(len(block.positions), limit, np.float32)


def if_best_is_certain(block: BlockView, params: DecodingParams) -> Float32:
    """Return minus infinity, which makes every position certain, except in some incomplete blocks.

    If the best probability of an incomplete block does not exceed skip_threshold, return infinity: none is certain.
    """
    best = block.candidates.probabilities[block.masked].max(initial=0.0)
    free = block.fully_activated or best > np.float32(params.skip_threshold)
    return np.full(len(block.positions), -math.inf if free else math.inf, np.float32)


def constant_inclusive(block: BlockView, params: DecodingParams) -> Float32:
    """Return the threshold of `constant`, lowered so that values equal to it pass."""
    return _below(constant(block, params))


def lower_near_anchors(block: BlockView, params: DecodingParams) -> Float32:
    """Return the threshold of `constant_inclusive`, lowered near positions that reach it (LocalLeap, arXiv 2510.07081).

    Near means at most LEAP_DISTANCE positions away.
    """
    usual = constant_inclusive(block, params)
    anchors = block.positions[block.masked & (certainties(block, params) > usual)]
    near = (np.abs(block.positions[:, None] - anchors) <= LEAP_DISTANCE).any(axis=1)
    return np.where(near, np.minimum(usual, _below(np.float32(LEAP_PROBABILITY))), usual)


def by_schedule(block: BlockView, params: DecodingParams) -> Float32:
    """Return Dream's limits: no position is certain, except positions drawn with alg "origin"."""
    if params.own["alg"] != "origin":
        return never(block, params)
    assert isinstance(block.memory, ScheduleStep)
    drawn = drawn_in_step(block.memory, block.positions, params)
    return np.where(drawn, np.float32(-math.inf), np.float32(math.inf))


def no_threshold(block: BlockView, params: DecodingParams) -> Float32:  # noqa: ARG001
    """Return minus infinity: every position is certain, and only the cut limits them."""
    return np.full(len(block.positions), -math.inf, np.float32)


def never(block: BlockView, params: DecodingParams) -> Float32:  # noqa: ARG001
    """Return infinity: no position is certain."""
    return np.full(len(block.positions), math.inf, np.float32)


def _below(limit: Float32 | np.float32) -> Float32:
    """Return the largest number below `limit`, so that values equal to `limit` exceed it."""
    return np.nextafter(limit, np.float32(-math.inf), dtype=np.float32)


# Stage 4: rank


def by_confidence(block: BlockView, params: DecodingParams) -> Floats:  # noqa: ARG001
    """Rank the most confident position first."""
    return np.asarray(block.candidates.confidences, np.float64)


def by_probability(block: BlockView, params: DecodingParams) -> Floats:  # noqa: ARG001
    """Rank the most probable candidate first."""
    return np.asarray(block.candidates.probabilities, np.float64)


def by_drawn_confidence(block: BlockView, params: DecodingParams) -> Floats:
    """Rank the most confident first; with alg_temp, draw the order by the softmax of confidence / alg_temp (Dream)."""
    if not params.own["alg_temp"]:
        return by_confidence(block, params)
    assert isinstance(block.memory, ScheduleStep)
    temperature: float = params.own["alg_temp"]
    return by_confidence(block, params) / temperature + noise_of_step(block.memory, block.positions, params)


def left_to_right(block: BlockView, params: DecodingParams) -> Floats:  # noqa: ARG001
    """Rank the lowest position first."""
    return -np.arange(len(block.positions), dtype=np.float64)


def confidences_by_distance(entropy: Float32, positions: Int64, params: DecodingParams) -> Float32:
    """Return the confidences [..., n] of sliding blocks: minus entropy, minus a penalty for distance (WeDLM).

    The penalty is distance_penalty for each position behind the first sampled one.
    """
    distances = (positions - positions[..., :1]).astype(np.float32)
    scores: Float32 = entropy + np.float32(params.distance_penalty) * distances
    return -scores


# Stage 5: cut and minimum


def no_limit(ranked: Int64, block: BlockView, params: DecodingParams) -> int:  # noqa: ARG001
    """Return the number of all certain positions."""
    return len(ranked)


def within_entropy_bound(ranked: Int64, block: BlockView, params: DecodingParams) -> int:
    """Accept the longest prefix whose entropies sum to at most gamma nats, excluding the largest (EB-Sampler, arXiv
    2505.24857). This bounds the dependence that joint unmasking ignores.

    The sum and the maximum of the entropies never fall as the prefix grows. A gamma of 0 accepts one position, since a
    model's entropy is 0 only by rounding.
    """
    assert block.candidates.entropies is not None
    gamma = params.own["gamma"]
    if gamma == 0:
        return min(1, len(ranked))
    entropies = np.maximum(block.candidates.entropies[ranked].astype(np.float64), 0.0)
    shared = np.cumsum(entropies) - np.maximum.accumulate(entropies)
    return int(np.count_nonzero(shared <= gamma))


def within_factor(ranked: Int64, block: BlockView, params: DecodingParams) -> int:
    """Return the largest n with (n + 1) (1 - probability of the n-th) below the factor (Fast-dLLM)."""
    p = block.candidates.probabilities[ranked].astype(np.float64)
    counts = 1 + np.flatnonzero(np.arange(2, len(p) + 2) * (1.0 - p) < params.own["factor"])
    return int(counts.max(initial=0))


def wino_cap(ranked: Int64, block: BlockView, params: DecodingParams) -> int:  # noqa: ARG001
    """Return 70 % of the number of masked positions, rounded down, limited to 5 to 20 (WINO)."""
    return min(len(ranked), max(5, min(20, int(0.7 * np.count_nonzero(block.masked)))))


def fixed_count(block: BlockView, params: DecodingParams) -> int:  # noqa: ARG001
    """Return the option tokens_per_step."""
    count: int = params.own["tokens_per_step"]
    return count


def share_of_schedule(block: BlockView, params: DecodingParams) -> int:
    """Return the count of Dream's current step; 0 with alg "origin", which draws each position independently."""
    assert isinstance(block.memory, ScheduleStep)
    if params.own["alg"] == "origin":
        return 0
    return count_of_step(block.memory, int(np.count_nonzero(block.masked)), params)


def share_of_step(block: BlockView, params: DecodingParams) -> int:
    """Return the step's share of a block that is unmasked in block_steps equal steps (LLaDA, SDAR).

    The first steps take the remainder, one position each.
    """
    each, more = divmod(params.block_size, params.block_steps)
    return max(1, each + (block.rounds < more))


# Stage 6: edit


def other_token_above(view: EditView, params: DecodingParams) -> Bool:
    """Return the positions whose candidate differs from their token and exceeds editing_threshold (LLaDA2.1)."""
    found: Bool = (view.candidates.tokens != view.tokens) & (view.candidates.probabilities > params.editing_threshold)
    return found


# Stage 7: remask


def least_probable(view: RemaskView, params: DecodingParams) -> Bool:
    """Return the least probable positions below remask_threshold, ties by position (WINO).

    The step remasks fewer positions than the previous step unmasked. It remasks none if it unmasked at most one
    position. Any two steps together therefore unmask more than they remask, so decoding ends.
    """
    result = np.zeros(len(view.probabilities), np.bool_)
    if view.accepted > 1:
        below = np.flatnonzero(view.probabilities < params.remask_threshold)
        limit = min(view.limit, remask_limit(view.before))
        result[below[np.argsort(view.probabilities[below], kind="stable")[:limit]]] = True
    return result


def remask_limit(before: int) -> int:
    """Return how many positions a block may remask in a step, if the previous step unmasked `before`."""
    return max(0, before - 1)


# Stage 8: lookaheads


def most_confident(branch: BranchView, count: int, params: DecodingParams) -> Int64:  # noqa: ARG001
    """Return the most confident positions, ties by position (LoPA)."""
    return np.argsort(-branch.candidates.confidences, kind="stable")[:count]


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


@dataclass(frozen=True, kw_only=True)
class OwnOption:
    """An option of one strategy."""

    name: str
    help: str
    default: bool | int | float | str | Callable[[int], bool | int | float | str]
    """The default, or a function that returns it for a value of max_new_tokens."""
    choices: tuple[str, ...] = ()
    """Allowed values of a text option; empty for other types."""
    min: float = 0.0
    max: float = 1e9
    infinite: bool = False
    """True if infinity is allowed."""

    def value(self, given: Any, max_new_tokens: int) -> bool | int | float | str:
        """Return the checked value `given`, or the default for None. Raises BadInputError for an invalid value."""
        default = self.default(max_new_tokens) if callable(self.default) else self.default
        if given is None:
            return default
        if self.choices:
            return check_choice(self.name, given, self.choices)
        if isinstance(default, bool):
            return check_bool(self.name, given)
        if isinstance(default, int):
            return check_int(self.name, given, min=int(self.min), max=int(self.max))
        if self.infinite and isinstance(given, (float, np.floating)) and given == float("inf"):
            return float("inf")
        return check_float(self.name, given, min=self.min, max=self.max)


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

    options: tuple[OwnOption, ...] = ()
    """Options that only this strategy has. Stages read their values from `params.own`."""

    pipelined: bool = False
    """True if several blocks may be unmasked at a time, False if one by one."""
    looks_ahead: bool = False
    """True if lookahead branches may be verified in the anchor's forward."""
    default_branches: int | None = 1
    """Default number of branches; None for the device's default (lopa.runtime.generation_config.branch_choice)."""
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
    confidence: Callable[[Mapping[str, Any]], Confidence] | None = None
    """Function from the strategy's own options to the confidence measure; None to use the option `confidence`."""
    overwrites_unmasked: bool = True
    """True if the published loop overwrites unmasked positions when too few are masked (docs/concepts/decoding.md)."""

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
    first = _first_masked(block, params)
    ranks = np.where(first, np.inf, strategy.rank(block, params))
    certain = (
        strategy.eligible(block, params)
        & block.masked
        & (certainties(block, params) > strategy.threshold(block, params))
    )
    ranked = _ranked(ranks, certain | first)
    chosen = ranked[: max(strategy.cut(ranked, block, params), int(first.any()))]
    minimum = strategy.minimum(block, params)
    if len(chosen) < minimum and block.fully_activated and block.masked.any():
        overwrites = params.overwrites_unmasked and strategy.overwrites_unmasked
        chosen = (_first_with_ties if overwrites else _best)(ranks, block.masked, minimum)
    result = np.zeros(len(block.positions), np.bool_)
    result[chosen] = True
    return result


def certainties(block: BlockView, params: DecodingParams) -> Float32:
    """Return the values that are compared with the threshold, [n]: probabilities, or confidences of sliding blocks."""
    return block.candidates.confidences if params.slides else block.candidates.probabilities


def _first_masked(block: BlockView, params: DecodingParams) -> Bool:
    first = np.zeros(len(block.positions), np.bool_)
    if params.unmask_first_masked and block.leads:
        first[np.flatnonzero(block.masked)[:1]] = True
    return first


def _ranked(ranks: Floats, among: Bool) -> Int64:
    found = np.flatnonzero(among)
    return found[np.argsort(-ranks[found], kind="stable")]


def _best(ranks: Floats, among: Bool, count: int) -> Int64:
    return _ranked(ranks, among)[:count]


def _first_with_ties(ranks: Floats, among: Bool, count: int) -> Int64:
    """Return the first `count` positions of `among` by rank.

    If there are fewer, add the positions that torch.topk would return (docs/reference/algorithm.md, section 12).
    """
    return indices_of_topk(np.where(among, ranks, -np.inf), min(count, len(ranks)))
