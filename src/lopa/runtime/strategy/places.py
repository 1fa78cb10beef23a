"""Which positions of one block a step decides, by stages 2 to 4 of a strategy's rule (docs/decoding.md). Pure."""

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.strategy.open_block import OpenBlock
from lopa.runtime.strategy.settings import Rule
from lopa.runtime.strategy.topk_ties import indices_of_topk


def chosen_places(block: OpenBlock, rule: Rule, config: GenerationConfig) -> Bool:
    """[n]: which of a block's n positions to decide.

    Of those that are eligible and above the threshold the first by rank, as many as the cut leaves. Where these are
    fewer than the step has to decide, and the block is complete: so many of all that are open, the first by rank.
    Where every step decides the answer's first undecided position, that is certain and the first of all.
    """
    frontier = block.frontier(config)
    ranks = np.where(frontier, np.inf, rule.rank(block, config))
    sure = rule.eligible(block, config) & block.open & (block.certainties(config) > rule.threshold(block, config))
    ranked = _ranked(ranks, sure | frontier)
    chosen = ranked[: max(rule.cut(ranked, block, config), int(frontier.any()))]
    least = rule.least(block, config)
    if len(chosen) < least and block.complete and block.open.any():
        overwrites = config.overwrites_decided and rule.overwrites_decided
        chosen = (_best_of_all if overwrites else _best)(ranks, block.open, least)
    result = np.zeros(len(block.positions), np.bool_)
    result[chosen] = True
    return result


def confidences_by_distance(entropy: Float32, positions: Int64, config: GenerationConfig) -> Float32:
    """Minus the scores [..., n] by which a sliding block is filled: entropy, and more the further a position is from
    the first one that is asked about (WeDLM's rule)."""
    distances = (positions - positions[..., :1]).astype(np.float32)
    scores: Float32 = entropy + np.float32(config.score_per_position) * distances
    return -scores


def _best(ranks: Floats, among: Bool, count: int) -> Int64:
    """The `count` first by rank, or as many as there are `among` a block's positions."""
    return _ranked(ranks, among)[:count]


def _best_of_all(ranks: Floats, among: Bool, count: int) -> Int64:
    """As `_best`, and others where these are fewer: those that torch.topk happens to return (docs/models.md)."""
    return indices_of_topk(np.where(among, ranks, -np.inf), min(count, len(ranks)))


def _ranked(ranks: Floats, among: Bool) -> Int64:
    """Indices of the positions `among` all, the first by rank first."""
    found = np.flatnonzero(among)
    return found[np.argsort(-ranks[found], kind="stable")]
