"""The built-in strategies, with the rules that only some of them have. Papers and published code are named there."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.options.option import (
    MAX_ENTROPY,
    MAX_POSITIONS,
    MAX_STEPS,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
    Alg,
    Confidence,
    Option,
)
from lopa.runtime.strategy.memories import Credit, Divergences, add_credit, credit_after, divergences_after
from lopa.runtime.strategy.schedule import ScheduleStep, count_of_step, drawn_in_step, next_step, noise_of_step
from lopa.runtime.strategy.strategy import (
    BlockView,
    EditView,
    Memory,
    RemaskView,
    Strategy,
    by_confidence,
    certainties,
    constant,
)

LEAP_DISTANCE, LEAP_PROBABILITY = 4, 0.75
"""LocalLeap: positions to either side of an anchor, and the probability that suffices there."""
BEFORE_FIRST_STEP = 30
"""Number of positions that a block counts as unmasked before its first step (WINO)."""


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


def stable(block: BlockView, params: DecodingParams) -> Bool:
    """Return the positions whose distribution hardly changed in the last steps (KLASS)."""
    assert isinstance(block.memory, Divergences)
    return block.memory.are_stable(block.positions, params.own["kl_threshold"])


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
    anchors = block.positions[block.masked & (certainties(block.candidates, params) > usual)]
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


def other_token_above(view: EditView, params: DecodingParams) -> Bool:
    """Return the positions whose candidate differs from their token and exceeds editing_threshold (LLaDA2.1)."""
    found: Bool = (view.candidates.tokens != view.tokens) & (view.candidates.probabilities > params.editing_threshold)
    return found


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


_CONFIDENCE_OF_ALG: Mapping[str, Confidence] = {
    "origin": "probability",
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "neg_entropy",
}


def _confidence_of_alg(own: Mapping[str, Any]) -> Confidence:
    return _CONFIDENCE_OF_ALG[own["alg"]]


_editing = partial(Strategy, edit=other_token_above)
_pipelined = partial(_editing, pipelined=True)

STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        _pipelined(
            name="lopa",
            summary="decode as D2F, with lookahead branches that are verified in the same forward (LoPA)",
            remask=least_probable,
            looks_ahead=True,
            default_branches=None,
            from_one_branch=False,
        ),
        _pipelined(
            name="d2f",
            summary="unmask tokens above a threshold, in several blocks at a time (D2F)",
            remask=least_probable,
        ),
        _editing(
            name="threshold",
            summary="unmask tokens above a threshold, block by block (Fast-dLLM)",
            remask=least_probable,
            block_steps=True,
        ),
        _editing(
            name="vanilla",
            summary="unmask the most confident token per step, block by block",
            without=("skip_threshold",),
            threshold=never,
            block_steps=True,
            unmasks_first=False,
        ),
        _editing(
            name="sequential",
            summary="unmask one token per step, from left to right",
            without=("skip_threshold", "confidence"),
            threshold=never,
            rank=left_to_right,
            block_steps=True,
            unmasks_first=False,
            overwrites_unmasked=False,
        ),
        _pipelined(
            name="eb",
            summary="unmask tokens as long as the sum of their entropies stays within a bound (EB-Sampler)",
            threshold=if_best_is_certain,
            cut=within_entropy_bound,
            remask=least_probable,
            looks_ahead=True,
            options=(
                Option(
                    name="gamma",
                    help="Maximum total entropy, in nats, of the tokens unmasked per block and step, excluding the "
                    "largest.",
                    default=0.2,
                    infinite=True,
                    max=1e308,
                ),
            ),
        ),
        Strategy(
            name="wino",
            summary="unmask tokens above a low threshold, and remask improbable ones (WINO)",
            without=("confidence",),
            rank=by_probability,
            cut=wino_cap,
            remask=least_probable,
            remask_threshold=0.9,
            from_one_branch=False,
            unmasks_first=False,
        ),
        Strategy(
            name="dream",
            summary="unmask the answer in a fixed number of steps (Dream)",
            without=("skip_threshold", "confidence"),
            rescore=on_schedule,
            threshold=by_schedule,
            rank=by_drawn_confidence,
            minimum=share_of_schedule,
            whole=True,
            filters_greedy=True,
            unmasks_first=False,
            confidence=_confidence_of_alg,
            options=(
                Option(
                    name="alg",
                    help="Order in which positions are unmasked, by Dream's names: origin (random), maskgit_plus "
                    "(probability), topk_margin or entropy.",
                    default="entropy",
                    kind=Alg,
                ),
                Option(
                    name="steps",
                    help="Number of denoising steps, by default one per token.",
                    kind=int,
                    default=lambda max_new_tokens: min(max_new_tokens, MAX_STEPS),
                    min=1,
                    max=MAX_STEPS,
                ),
                Option(
                    name="alg_temp",
                    help="Temperature at which positions are drawn by their confidence; 0 takes the most confident.",
                    default=0.0,
                    max=MAX_TEMPERATURE,
                ),
            ),
        ),
        _editing(
            name="top_n",
            summary="unmask a fixed number of tokens per block and step",
            without=("skip_threshold",),
            threshold=never,
            minimum=fixed_count,
            options=(
                Option(
                    name="tokens_per_step",
                    help="Tokens unmasked per block and step.",
                    default=2,
                    min=1,
                    max=MAX_POSITIONS,
                ),
            ),
        ),
        _pipelined(
            name="factor",
            summary="unmask as many tokens as their joint probability allows (Fast-dLLM)",
            without=("skip_threshold", "confidence"),
            threshold=no_threshold,
            rank=by_probability,
            cut=within_factor,
            options=(
                Option(
                    name="factor",
                    help="Unmask the n most probable tokens if (n + 1) (1 - probability of the n-th) is below this.",
                    default=1.0,
                    max=MAX_POSITIONS,
                ),
            ),
        ),
        _pipelined(
            name="klass",
            summary="unmask tokens above a threshold whose distribution is stable (KLASS)",
            rescore=with_divergences,
            eligible=stable,
            threshold=constant_inclusive,
            options=(
                Option(
                    name="kl_threshold",
                    help="KL divergence, in nats, between steps below which a distribution counts as stable.",
                    default=0.01,
                    max=MAX_ENTROPY,
                ),
            ),
        ),
        _pipelined(
            name="credit",
            summary="unmask tokens above a threshold, with a bonus for tokens that stay the best (CreditDecoding)",
            rescore=with_credit,
        ),
        Strategy(
            name="canvas",
            summary="denoise canvases of random tokens (DiffusionGemma)",
            canvas=True,
            looks_ahead=True,
            without=("skip_threshold", "confidence", "deduplicate_rows"),
            from_one_branch=False,
            unmasks_first=False,
            options=(
                Option(
                    name="entropy_bound",
                    help="Maximum total entropy, in nats, of the tokens that a step accepts, excluding the largest.",
                    default=0.1,
                    infinite=True,
                ),
                Option(
                    name="max_denoising_steps",
                    help="Maximum number of steps per canvas.",
                    default=48,
                    min=1,
                    max=MAX_STEPS,
                ),
                Option(
                    name="t_max",
                    help="Temperature of a canvas's first step.",
                    default=0.8,
                    min=MIN_TEMPERATURE,
                    max=MAX_TEMPERATURE,
                ),
                Option(
                    name="t_min",
                    help="Temperature that the last steps of a canvas approach.",
                    default=0.4,
                    max=MAX_TEMPERATURE,
                ),
                Option(
                    name="stability_threshold",
                    help="Steps before with the same best tokens, after which a canvas may end.",
                    default=1,
                    min=0,
                    max=1000,
                ),
                Option(
                    name="confidence_threshold",
                    help="End a stable canvas when its mean entropy, in nats, is below this.",
                    default=0.005,
                    max=MAX_ENTROPY,
                ),
            ),
        ),
        _pipelined(
            name="local_leap",
            summary="unmask tokens above a threshold that is lower near certain tokens (LocalLeap)",
            threshold=lower_near_anchors,
        ),
    )
}
"""Built-in strategies by name."""
