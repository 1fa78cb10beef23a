"""The branches of the next round, from the winner of this one (docs/lopa.md, section 6 J and K). Pure."""

import math
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.blocks import Blocks, active, after_round, after_slide
from lopa.runtime.sequence.branches import Branch, Lookahead, with_logprobs
from lopa.runtime.strategy.candidates import Candidates


def lookaheads_from_candidates(positions: Int64, candidates: Candidates, count: int) -> tuple[Lookahead, ...]:
    """The `count` most confident of the positions left after the fills, best first, equal ones by position.

    `positions` [n] ascending; `candidates` [n] are this round's, computed before the fills.
    """
    best = np.argsort(-candidates.confidences, kind="stable")[:count]
    said = candidates.logprobs
    return tuple(
        Lookahead(
            rank,
            int(positions[i]),
            int(candidates.tokens[i]),
            float(candidates.confidences[i]),
            None if said is None else float(said[i]),
            float(candidates.probabilities[i]),
            math.nan if candidates.entropies is None else float(candidates.entropies[i]),
        )
        for rank, i in enumerate(best)
    )


def branches_from_winner(
    winner: Branch,
    lookaheads: tuple[Lookahead, ...],
    config: GenerationConfig,
    *,
    mask_token: int,
    ends: tuple[int, ...],
) -> tuple[Branch, ...]:
    """Lookahead branches by rank, then the anchor: copies of the winner after its fills, with their next states.

    The published loop makes the anchor twice where nothing is left to look ahead at (quirk 2).
    """
    anchor = replace(winner, blocks=blocks_of_next_round(winner, winner.decided), lookahead=None)
    if not lookaheads:
        return (anchor, anchor) if config.published and config.lookaheads else (anchor,)
    return (*(_ahead(winner, look, mask_token, ends) for look in lookaheads), anchor)


def blocks_of_next_round(winner: Branch, decided: Bool) -> Blocks:
    """The blocks of a branch made of `winner`, with what is `decided` [positions] in that branch."""
    if winner.layout.slides:
        return after_slide(winner.blocks, decided, winner.decided)
    may_finish = frozenset(
        block.start for block in active(winner.blocks) if winner.decided[block.start : block.end].all()
    )
    return after_round(winner.blocks, decided, may_finish)


def _ahead(winner: Branch, lookahead: Lookahead, mask_token: int, ends: tuple[int, ...]) -> Branch:
    tokens, decided = winner.tokens.copy(), winner.decided.copy()
    tokens[lookahead.position] = lookahead.token
    decided[lookahead.position] = lookahead.token != mask_token
    return replace(
        winner,
        tokens=tokens,
        decided=decided,
        blocks=blocks_of_next_round(winner, decided),
        ended=winner.ended or lookahead.token in ends,
        lookahead=lookahead,
        logprobs=with_logprobs(winner.logprobs, lookahead.position, lookahead.logprob),
    )
