"""Whole decodes: memory follows the winner, and batches, streams and engines change no token."""

from dataclasses import replace

import numpy as np
from tests.params import branch_of, context_of
from tests.runtime.decoding.rounds import scores_of

from lopa.runtime.decoding.round import spawn, unmask
from lopa.runtime.state.pipeline import next_anchor
from lopa.runtime.strategy.memories import Credit
from lopa.runtime.strategy.strategy import Candidates


def test_the_memory_follows_the_winner_and_its_rows() -> None:
    """Every branch made from the winner gets its memory. Positions behind an unmasked end of text are dropped."""
    context = context_of(
        mask_token=2, ends=(99,), strategy="lopa", branches=3, block_size=6, max_new_tokens=12, block_add_threshold=1.0
    )
    positions = np.arange(4, 10)
    memory = Credit(positions, np.zeros((6, 8), np.int64), np.ones((6, 8)))
    winner = replace(branch_of(np.arange(10, 14), context), memory=memory)
    p = np.float32([0.1, 0.2, 0.95, 0.3, 0.2, 0.1])
    candidates = Candidates(np.array([20, 21, 99, 23, 24, 25]), p, p)
    outcome = unmask(scores_of(winner, positions, candidates), 0, context)
    assert isinstance(outcome.branch.memory, Credit)
    assert outcome.branch.memory.positions.tolist() == [4, 5, 6]
    branches, _ = spawn(next_anchor(outcome.branch), outcome, 2, context)
    assert [branch.lookahead is None for branch in branches] == [False, False, True]
    for each in branches:
        assert each.memory is outcome.branch.memory
