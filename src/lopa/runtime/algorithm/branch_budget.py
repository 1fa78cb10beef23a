"""How many branches the next round should verify: branches="auto" (docs/decoding.md, "Branches that pay").

A lookahead branch brings tokens and costs time. The budget knows what a forward costs on this device (a cost table) and
learns, round by round, what each number of branches would have brought; it asks for the number with the most expected
tokens per second. Knows nothing of other requests, so a request decodes the same alone and in any company.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lopa.runtime.algorithm.competition import winner_of
from lopa.runtime.algorithm.deciding import Terms, settled_branch
from lopa.runtime.algorithm.filling import Fills, filled, fills_from_candidates, positions_written
from lopa.runtime.algorithm.spawning import blocks_of_next_round
from lopa.runtime.bundle.costs import CostTable
from lopa.runtime.contract import Float32, tiles
from lopa.runtime.generation_config import MOST_AUTO_BRANCHES
from lopa.runtime.sequence.blocks import active
from lopa.runtime.sequence.branches import Branch, is_end, size_of_next_block
from lopa.runtime.sequence.windows import Windows
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.judging import judged_positions, without_doubted

_PRIOR_SHARES = (1.0, 1.47, 1.68, 1.81, 1.89, 1.95, 1.99, 2.03)
"""Tokens of a round with 1 .. 8 branches, as multiples of a round with one: whole decodes of the tiny model's
evaluation prompts, mean of both kinds (docs/measurements, 2026-11-21; 5 and 7 are between their neighbours)."""
_PRIOR_TOKENS = 4.4
"""Tokens of a round with one branch before anything is known, from the same prompts."""
_PRIOR_ROUNDS = 64.0
"""How many observed rounds the prior weighs as much as: what a round brings varies by more than its mean."""


class BranchBudget:
    """The estimate for one request."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._tokens = [0.0] * MOST_AUTO_BRANCHES
        self._rounds = [0] * MOST_AUTO_BRANCHES
        """Observed, by number of branches - 1."""

    def lookaheads(
        self,
        verified: Sequence[Branch],
        windows: Windows,
        candidates: Sequence[Candidates],
        confidences: Sequence[float],
        chosen: Branch,
        doubt: Float32,
        terms: Terms,
    ) -> int:
        """How many lookaheads the next round should have; learns from the round that ends.

        It `verified` these branches, the anchor last, with these `candidates` for the asked positions and these
        probabilities `doubt` [S] of the judged ones; `chosen` is the winner after its fills, without what is doubted.
        """
        config, ends, mask_token = terms.config, terms.ends, terms.mask_token
        fills = [
            fills_from_candidates(branch, asked, each, config)
            for branch, asked, each in zip(verified, windows.asked, candidates, strict=True)
        ]

        def taken_back(branch: Branch, fills: Fills) -> int:
            """How many positions the round would have taken back if this branch had won it."""
            if not len(windows.judged):
                return 0
            after = settled_branch(filled(branch, fills, mask_token=mask_token, ends=ends), terms)
            written = positions_written(branch, fills)
            _, positions = without_doubted(
                after, written, windows.judged, doubt, terms.rule, config, mask_token=mask_token, ends=ends
            )
            return len(positions)

        self.observe(
            confidences,
            [
                tokens_brought(branch, each, ends) - taken_back(branch, each)
                for branch, each in zip(verified, fills, strict=True)
            ],
        )
        if chosen.layout.slides:  # before the next block's size can be known
            chosen = replace(chosen, blocks=blocks_of_next_round(chosen, chosen.decided))
        left = int(np.count_nonzero(~chosen.decided))
        if not left:
            return 0
        open_blocks, last = active(chosen.blocks), chosen.blocks[-1]
        start = open_blocks[0].start if open_blocks else last.end
        if left == 1 and not size_of_next_block(chosen, 1.0, config):
            return 1  # decides the last position, so that no forward is needed any more
        grown = size_of_next_block(chosen, float(chosen.decided[last.start : last.end].mean()), config)
        anchor = replace(chosen, blocks=blocks_of_next_round(chosen, chosen.decided))
        shadows = len(judged_positions(anchor, terms.rule, config, ends))
        window = len(chosen.tokens) + grown - start + shadows
        return self.branches(undecided=left, window=window, prefix=tiles(start)) - 1

    def observe(self, confidences: Sequence[float], tokens: Sequence[int]) -> None:
        """Learn from a round: each branch's confidence, and the tokens it brings if it wins, less what is taken back.

        Branches are in the order of the round, the anchor last. What a smaller number of branches would have brought
        is known exactly: its lookaheads are the first of these, and the anchor is the same.
        """
        lookaheads = len(confidences) - 1
        for count in range(1, lookaheads + 2):
            chosen = [*range(count - 1), lookaheads]
            winner = chosen[winner_of([confidences[branch] for branch in chosen])]
            self._tokens[count - 1] += tokens[winner]
            self._rounds[count - 1] += 1

    def branches(self, *, undecided: int, window: int, prefix: int) -> int:
        """The number of branches for a round over `window` rows and `prefix` cache rows.

        `undecided` positions are left in the window: no round can decide more.
        """
        best, most_tokens_per_second = 1, 0.0
        for count, tokens in enumerate(self._expected_tokens(min(MOST_AUTO_BRANCHES, undecided + 1)), start=1):
            seconds = self._table.seconds(count, window, prefix) + self._table.host_seconds(count)
            tokens_per_second = min(tokens, undecided) / seconds
            if tokens_per_second > most_tokens_per_second:
                best, most_tokens_per_second = count, tokens_per_second
        return best

    def _expected_tokens(self, most: int) -> Iterator[float]:
        """Mean tokens of a round with 1 .. `most` branches: the observed ones and the prior, by weight.

        The prior of each number of branches is what one branch less is expected to bring, times what the next brought
        in general: so rounds also tell of numbers that were never tried.
        """
        expected = _PRIOR_TOKENS
        for number in range(most):
            expected *= _PRIOR_SHARES[number] / _PRIOR_SHARES[max(number - 1, 0)]
            expected = (_PRIOR_ROUNDS * expected + self._tokens[number]) / (_PRIOR_ROUNDS + self._rounds[number])
            yield expected


def tokens_brought(branch: Branch, fills: Fills, ends: tuple[int, ...]) -> int:
    """What the answer gains if `branch` wins a round: its lookahead token and its fills, ends of text not counted."""
    ahead = branch.lookahead is not None and branch.lookahead.token not in ends
    return int(ahead) + int((~is_end(fills.tokens, ends)).sum())
