"""Custom strategy that unmasks the tokens that several branches propose. Install it with pip install PATH."""

import numpy as np

from lopa.runtime.contract import Bool
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import BlockView, Option, Strategy, match_positions
from lopa.runtime.strategy.strategies import no_threshold


def agreed(block: BlockView, params: DecodingParams) -> Bool:
    """Return the positions at which enough branches, including this one, propose this branch's token."""
    votes = np.zeros(len(block.positions), np.int64)
    for positions, candidates in zip(block.round.positions, block.round.candidates, strict=True):
        asked, places = match_positions(positions, block.positions)
        votes[asked] += candidates.tokens[places[asked]] == block.candidates.tokens[asked]
    needed: int = params.own["agreement"]
    return votes >= needed


AGREEMENT = Strategy(
    name="agreement",
    summary="tokens that several branches propose",
    eligible=agreed,
    threshold=no_threshold,
    options=(Option(name="agreement", help="Minimum branches that propose a token.", default=2, min=1, max=64),),
    pipelined=True,
    looks_ahead=True,
    default_branches=3,
    from_one_branch=False,
)
