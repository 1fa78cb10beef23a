"""The record of a strategy: five stages, its traits and its own options (docs/concepts/decoding.md, "Five stages").

A step of a round goes through the stages in this order:

1. `rescore` changes what the forward said of a branch, before candidates are made of it, and updates its memory.
2. `eligible` says which positions may be unmasked because they are certain.
3. `threshold` says what each position has to exceed, and `rank` orders them.
4. `cut` says how many of those that do are unmasked, the first by rank; `minimum` says how many are unmasked anyway.
5. `remask` says which unmasked positions are masked again.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lopa.runtime.checked_values import check_bool, check_choice, check_float, check_int
from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.plan.choices import Confidence
from lopa.runtime.strategy.credit import Credit, credit_after, credited
from lopa.runtime.strategy.divergences import Divergences, divergences_after
from lopa.runtime.strategy.schedule import ScheduleStep, count_of_step, drawn_in_step, next_step, noise_of_step
from lopa.runtime.strategy.topk_ties import indices_of_topk
from lopa.runtime.strategy.views import BlockView, Memory, RemaskView

LEAP_DISTANCE, LEAP_PROBABILITY = 4, 0.75
"""LocalLeap's positions to either side of an anchor, and the probability that is enough there."""
BEFORE_FIRST_STEP = 30
"""Positions that a block is taken to have unmasked before its first step (WINO)."""


# Stage 1: rescore


def identity(
    rows: RowStatistics,
    positions: Int64,  # noqa: ARG001
    memory: Memory | None,
    plan: DecodingPlan,  # noqa: ARG001
) -> tuple[RowStatistics, Memory | None]:
    """Leave the rows as they are and remember nothing."""
    return rows, memory


def with_divergences(
    rows: RowStatistics,
    positions: Int64,
    memory: Memory | None,
    plan: DecodingPlan,  # noqa: ARG001
) -> tuple[RowStatistics, Memory | None]:
    """Leave the rows as they are and remember their KL divergence from the step before (KLASS)."""
    assert memory is None or isinstance(memory, Divergences)
    return rows, divergences_after(memory, rows, positions)


def with_credit(
    rows: RowStatistics, positions: Int64, memory: Memory | None, plan: DecodingPlan
) -> tuple[RowStatistics, Memory | None]:
    """Make tokens more probable that were the best in earlier steps (CreditDecoding)."""
    assert memory is None or isinstance(memory, Credit)
    credit = credit_after(memory, rows, positions)
    return credited(rows, credit, plan.logits_temperature), credit


def on_schedule(
    rows: RowStatistics, positions: Int64, memory: Memory | None, plan: DecodingPlan
) -> tuple[RowStatistics, Memory | None]:
    """Leave the rows as they are and remember the step of the schedule (Dream)."""
    assert memory is None or isinstance(memory, ScheduleStep)
    return rows, next_step(memory, positions, plan)


# Stage 2: eligible


def all_masked(block: BlockView, plan: DecodingPlan) -> Bool:  # noqa: ARG001
    """Every masked position."""
    return block.masked


def settled(block: BlockView, plan: DecodingPlan) -> Bool:
    """Positions for which the model said nearly the same in the last steps (KLASS)."""
    assert isinstance(block.memory, Divergences)
    return block.memory.settled(block.positions, plan.own["kl_threshold"])


# Stage 3: threshold


def constant(block: BlockView, plan: DecodingPlan) -> Float32:
    """skip_threshold for all; with sliding blocks minus entropy_threshold."""
    limit = -plan.entropy_threshold if plan.slides else plan.skip_threshold
    return np.full(len(block.positions), limit, np.float32)


def if_best_is_certain(block: BlockView, plan: DecodingPlan) -> Float32:
    """No threshold, except in a block that waits for the one before: there all or nothing, depending on whether the
    highest probability exceeds skip_threshold."""
    best = block.candidates.probabilities[block.masked].max(initial=0.0)
    free = block.complete or best > np.float32(plan.skip_threshold)
    return np.full(len(block.positions), -math.inf if free else math.inf, np.float32)


def reached(block: BlockView, plan: DecodingPlan) -> Float32:
    """As `constant`, for a rule that also accepts what is equal to the threshold."""
    return _below(constant(block, plan))


def lower_near_anchors(block: BlockView, plan: DecodingPlan) -> Float32:
    """As `reached`, and lower within LEAP_DISTANCE of a position that reaches it (LocalLeap, arXiv 2510.07081)."""
    usual = reached(block, plan)
    anchors = block.positions[block.masked & (certainties(block, plan) > usual)]
    near = (np.abs(block.positions[:, None] - anchors) <= LEAP_DISTANCE).any(axis=1)
    return np.where(near, np.minimum(usual, _below(np.float32(LEAP_PROBABILITY))), usual)


def by_schedule(block: BlockView, plan: DecodingPlan) -> Float32:
    """Dream's: nothing is certain; with alg "origin", where each position is drawn by itself, the drawn ones are."""
    if plan.own["alg"] != "origin":
        return never(block, plan)
    assert isinstance(block.memory, ScheduleStep)
    drawn = drawn_in_step(block.memory, block.positions, plan)
    return np.where(drawn, np.float32(-math.inf), np.float32(math.inf))


def no_threshold(block: BlockView, plan: DecodingPlan) -> Float32:  # noqa: ARG001
    """Every position is certain: the cut alone decides."""
    return np.full(len(block.positions), -math.inf, np.float32)


def never(block: BlockView, plan: DecodingPlan) -> Float32:  # noqa: ARG001
    """No position is certain."""
    return np.full(len(block.positions), math.inf, np.float32)


def _below(limit: Float32 | np.float32) -> Float32:
    """Return the next number below, which what reaches `limit` exceeds."""
    return np.nextafter(limit, np.float32(-math.inf), dtype=np.float32)


# Stage 3: rank


def by_confidence(block: BlockView, plan: DecodingPlan) -> Floats:  # noqa: ARG001
    """The most confident first."""
    return np.asarray(block.candidates.confidences, np.float64)


def by_probability(block: BlockView, plan: DecodingPlan) -> Floats:  # noqa: ARG001
    """The most probable candidate first."""
    return np.asarray(block.candidates.probabilities, np.float64)


def by_drawn_confidence(block: BlockView, plan: DecodingPlan) -> Floats:
    """The most confident first; with alg_temp drawn by the softmax of confidences over it (Dream)."""
    if not plan.own["alg_temp"]:
        return by_confidence(block, plan)
    assert isinstance(block.memory, ScheduleStep)
    temperature: float = plan.own["alg_temp"]
    return by_confidence(block, plan) / temperature + noise_of_step(block.memory, block.positions, plan)


def left_to_right(block: BlockView, plan: DecodingPlan) -> Floats:  # noqa: ARG001
    """The lowest position first."""
    return -np.arange(len(block.positions), dtype=np.float64)


def confidences_by_distance(entropy: Float32, positions: Int64, plan: DecodingPlan) -> Float32:
    """Return minus the scores [..., n] of sliding blocks: entropy, plus distance_penalty for each position behind the
    first one that is asked about (WeDLM)."""
    distances = (positions - positions[..., :1]).astype(np.float32)
    scores: Float32 = entropy + np.float32(plan.distance_penalty) * distances
    return -scores


# Stage 4: cut and minimum


def no_limit(ranked: Int64, block: BlockView, plan: DecodingPlan) -> int:  # noqa: ARG001
    """All certain positions."""
    return len(ranked)


def within_entropy_bound(ranked: Int64, block: BlockView, plan: DecodingPlan) -> int:
    """Accept the longest prefix whose entropies sum to at most gamma nats, excluding the largest (EB-Sampler, arXiv
    2505.24857). This bounds the dependence that joint unmasking ignores.

    A prefix has a sum and a maximum of its own, and neither falls with its length. No entropy of a model is 0 but by
    rounding, so a gamma of 0 is one position.
    """
    assert block.candidates.entropies is not None
    gamma = plan.own["gamma"]
    if gamma == 0:
        return min(1, len(ranked))
    entropies = np.maximum(block.candidates.entropies[ranked].astype(np.float64), 0.0)
    shared = np.cumsum(entropies) - np.maximum.accumulate(entropies)
    return int(np.count_nonzero(shared <= gamma))


def within_factor(ranked: Int64, block: BlockView, plan: DecodingPlan) -> int:
    """The largest n with (n + 1) (1 - probability of the n-th) below the factor (Fast-dLLM)."""
    p = block.candidates.probabilities[ranked].astype(np.float64)
    counts = 1 + np.flatnonzero(np.arange(2, len(p) + 2) * (1.0 - p) < plan.own["factor"])
    return int(counts.max(initial=0))


def wino_cap(ranked: Int64, block: BlockView, plan: DecodingPlan) -> int:  # noqa: ARG001
    """Seven tenths of the masked positions, rounded down, but 5 to 20 (WINO)."""
    return min(len(ranked), max(5, min(20, int(0.7 * np.count_nonzero(block.masked)))))


def fixed_count(block: BlockView, plan: DecodingPlan) -> int:  # noqa: ARG001
    """As many positions as tokens_per_step says."""
    count: int = plan.own["tokens_per_step"]
    return count


def share_of_schedule(block: BlockView, plan: DecodingPlan) -> int:
    """As many as the step of Dream's schedule says; none where each position is drawn by itself."""
    assert isinstance(block.memory, ScheduleStep)
    if plan.own["alg"] == "origin":
        return 0
    return count_of_step(block.memory, int(np.count_nonzero(block.masked)), plan)


def share_of_step(block: BlockView, plan: DecodingPlan) -> int:
    """The step's share of a block that is unmasked in block_steps steps of equal size, the first ones a position larger
    where they do not divide it (LLaDA, SDAR)."""
    each, more = divmod(plan.block_size, plan.block_steps)
    return max(1, each + (block.rounds < more))


# Stage 5: remask


def least_probable(view: RemaskView, plan: DecodingPlan) -> Bool:
    """The least probable positions below remask_threshold, fewer than the step before unmasked, of equal ones the
    first; none in a step that unmasked no more than one (WINO).

    Every two steps together unmask more than they remask, so an answer comes to its end.
    """
    result = np.zeros(len(view.probabilities), np.bool_)
    if view.accepted > 1:
        below = np.flatnonzero(view.probabilities < plan.remask_threshold)
        limit = min(view.limit, remask_limit(view.before))
        result[below[np.argsort(view.probabilities[below], kind="stable")[:limit]]] = True
    return result


def remask_limit(before: int) -> int:
    """Return how many positions a block may remask in the step after one that unmasked `before`."""
    return max(0, before - 1)


# The record

Rescore = Callable[
    [RowStatistics, Int64, Memory | None, DecodingPlan],
    tuple[RowStatistics, Memory | None],
]
"""From rows [n] about positions [n] of a branch, ascending, and its memory: the rows to decide by, and its memory."""
Eligible = Callable[[BlockView, DecodingPlan], Bool]
"""[n] for a block's n positions."""
Threshold = Callable[[BlockView, DecodingPlan], Float32]
"""[n]: what the certainty of each position has to exceed."""
Rank = Callable[[BlockView, DecodingPlan], Floats]
"""[n]: the largest is first, of equal ones the lowest position."""
Cut = Callable[[Int64, BlockView, DecodingPlan], int]
"""From the indices [m] of a block's certain positions, the first by rank first: how many of them."""
Minimum = Callable[[BlockView, DecodingPlan], int]
"""How many positions a complete block unmasks, certain or not."""
Remask = Callable[[RemaskView, DecodingPlan], Bool]
"""[n]: which of a block's judged positions are masked again."""


@dataclass(frozen=True, kw_only=True)
class OwnOption:
    """An option that only one strategy has."""

    name: str
    help: str
    default: bool | int | float | str | Callable[[int], bool | int | float | str]
    """The value where none is given, or a function that returns it for max_new_tokens."""
    choices: tuple[str, ...] = ()
    """Allowed values of an option that is a word."""
    min: float = 0.0
    max: float = 1e9
    infinite: bool = False
    """Whether a number may be infinite."""

    def value(self, given: Any, max_new_tokens: int) -> bool | int | float | str:
        """Return `given`, checked, or the default for None. Raises BadInputError for a value that is not allowed."""
        default = self.default(max_new_tokens) if callable(self.default) else self.default
        if given is None:
            return default
        if self.choices:
            return check_choice(self.name, given, self.choices)
        if isinstance(default, bool):
            return check_bool(self.name, given)
        if isinstance(default, int):
            return check_int(self.name, given, min=int(self.min), max=int(self.max))
        if self.infinite and given == float("inf") and not isinstance(given, str):
            return float("inf")
        return check_float(self.name, given, min=self.min, max=self.max)


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What decides which positions a step unmasks. Register it with `register_strategy` or as an entry point."""

    name: str
    summary: str
    """One line for help texts."""

    rescore: Rescore = identity
    eligible: Eligible = all_masked
    threshold: Threshold = constant
    rank: Rank = by_confidence
    cut: Cut = no_limit
    minimum: Minimum = share_of_step
    remask: Remask | None = None
    """None: what is unmasked stays, and the options remask_threshold and remask_limit are refused."""

    options: tuple[OwnOption, ...] = ()
    """Options that other strategies do not have. Stages find their values in `plan.own`."""

    pipelined: bool = False
    """Whether several blocks may be unmasked at a time; otherwise they are unmasked one by one."""
    looks_ahead: bool = False
    """Whether lookahead branches may be verified beside the anchor."""
    default_branches: int | None = 1
    """Branches where none are requested; None: the device's default (lopa.runtime.generation_config.branch_choice)."""
    block_steps: bool = False
    """Whether the option of this name says how many positions a step unmasks at least."""
    whole: bool = False
    """Whether the whole answer is one block of which no row is kept."""
    filters_greedy: bool = False
    """Whether top_k and top_p also restrict the distributions from which the best token is taken."""
    from_one_branch: bool = True
    """Whether what a step unmasks follows from the answers to one branch alone, which `speculative` needs."""
    unmasks_first: bool = True
    """Whether the option unmask_first_masked is allowed."""
    remask_threshold: float = 0.0
    """remask_threshold where none is given; 0: nothing is remasked."""
    confidence: Callable[[Mapping[str, Any]], Confidence] | None = None
    """What ranks positions, from the strategy's own options; None: the option `confidence` says so."""
    overwrites_unmasked: bool = True
    """Whether the published loop overwrites unmasked positions where too few are masked (docs/concepts/decoding.md)."""

    @property
    def default_cache(self) -> str | None:
        """The cache with which the strategy decodes whatever a model prefers; None: the model's."""
        if self.whole:
            return "none"
        return "blocks" if self.pipelined or self.remask_threshold else None


# A block through the stages


def unmasked_positions(block: BlockView, strategy: Strategy, plan: DecodingPlan) -> Bool:
    """Return which of a block's n positions a step unmasks, [n], by stages 2 to 4 of `strategy`.

    Of the positions that are eligible and above the threshold these are the first by rank, as many as the cut leaves.
    Where they are fewer than the minimum and the block is complete, they are the first by rank of all masked ones.
    With unmask_first_masked the answer's first masked position is certain and the first of all.
    """
    first = _first_masked(block, plan)
    ranks = np.where(first, np.inf, strategy.rank(block, plan))
    certain = (
        strategy.eligible(block, plan) & block.masked & (certainties(block, plan) > strategy.threshold(block, plan))
    )
    ranked = _ranked(ranks, certain | first)
    chosen = ranked[: max(strategy.cut(ranked, block, plan), int(first.any()))]
    minimum = strategy.minimum(block, plan)
    if len(chosen) < minimum and block.complete and block.masked.any():
        overwrites = plan.overwrites_unmasked and strategy.overwrites_unmasked
        chosen = (_best_of_all if overwrites else _best)(ranks, block.masked, minimum)
    result = np.zeros(len(block.positions), np.bool_)
    result[chosen] = True
    return result


def certainties(block: BlockView, plan: DecodingPlan) -> Float32:
    """Return what is compared with the threshold, [n]: probabilities, or with sliding blocks minus the scores."""
    return block.candidates.confidences if plan.slides else block.candidates.probabilities


def _first_masked(block: BlockView, plan: DecodingPlan) -> Bool:
    first = np.zeros(len(block.positions), np.bool_)
    if plan.unmask_first_masked and block.leads:
        first[np.flatnonzero(block.masked)[:1]] = True
    return first


def _ranked(ranks: Floats, among: Bool) -> Int64:
    found = np.flatnonzero(among)
    return found[np.argsort(-ranks[found], kind="stable")]


def _best(ranks: Floats, among: Bool, count: int) -> Int64:
    return _ranked(ranks, among)[:count]


def _best_of_all(ranks: Floats, among: Bool, count: int) -> Int64:
    """Return the first `count` by rank, and where fewer are `among`, others as torch.topk chooses
    (docs/concepts/decoding.md)."""
    return indices_of_topk(np.where(among, ranks, -np.inf), min(count, len(ranks)))
