"""Which positions of one block a step decides: how many, and which (docs/decoding.md, "How many a step"). Pure."""

import numpy as np

from lopa.runtime.algorithm.topk_ties import indices_of_topk
from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.generation_config import GenerationConfig


def places_in_step(round_of_block: int, config: GenerationConfig) -> int:
    """How many positions a block decides at least in its round number `round_of_block`, counted from 0.

    With `block_steps` a block is decided in so many steps of equal size, the first ones a position larger where they do
    not divide it (LLaDA, SDAR); else one.
    """
    if config.block_steps is None:
        return 1
    each, more = divmod(config.block_size, config.block_steps)
    return max(1, each + (round_of_block < more))


def chosen_places(
    probabilities: Floats, confidences: Floats, undecided: Bool, config: GenerationConfig, *, least: int, always: bool
) -> Bool:
    """[n]: which of a block's n positions to decide, all arrays [n] by rising position.

    All that are certain if these are `least` or more; else the `least` most confident (`sequential`: the first), the
    first of equal ones, but only if the block may `always` decide something.
    """
    chosen: Bool = _certain(probabilities, confidences, config) & undecided
    if np.count_nonzero(chosen) >= least or not always or not undecided.any():
        return chosen
    if config.strategy == "sequential":
        ranks = -np.arange(len(undecided), dtype=np.float64)
    else:
        ranks = np.asarray(confidences, np.float64)
    ranks = np.where(undecided, ranks, -np.inf)
    if config.overwrites_decided and config.strategy != "sequential":
        best = indices_of_topk(ranks, min(least, len(ranks)))
    else:
        best = np.argsort(-ranks, kind="stable")[: min(least, np.count_nonzero(undecided))]
    chosen = np.zeros(len(undecided), np.bool_)
    chosen[best] = True
    return chosen


def confidences_by_distance(entropy: Float32, positions: Int64, config: GenerationConfig) -> Float32:
    """Minus the scores [..., n] by which a sliding block is filled: entropy, and more the further a position is from
    the first one that is asked about (WeDLM's rule)."""
    distances = (positions - positions[..., :1]).astype(np.float32)
    scores: Float32 = entropy + np.float32(config.score_per_position) * distances
    return -scores


def _certain(probabilities: Floats, confidences: Floats, config: GenerationConfig) -> Bool:
    """[n]: what is filled at once."""
    if config.slides:
        return confidences > np.float32(-config.score_limit)
    return probabilities > np.float32(config.fill_threshold)
