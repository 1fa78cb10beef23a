"""How many branches the next round should verify: branches="auto" (docs/how-to/choose-a-strategy.md).

A lookahead branch brings tokens and costs time. The budget knows what a forward costs on this device (a cost table) and
learns, round by round, what each number of branches would have brought; it asks for the number with the most expected
tokens per second. Knows nothing of other requests, so a request decodes the same alone and in any batch.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from lopa.runtime.contract import tiles
from lopa.runtime.decoding.remask import judged_positions
from lopa.runtime.decoding.round import Outcome
from lopa.runtime.plan import MAX_AUTO_BRANCHES
from lopa.runtime.state.branch import Branch, is_end
from lopa.runtime.state.context import Context
from lopa.runtime.state.pipeline import next_block_size


class Costs(Protocol):
    """What rounds cost on a device; a cost table of a bundle is one."""

    def seconds(self, branches: int, window: int, prefix: int) -> float:
        """Return the seconds of a forward."""

    def host_seconds(self, branches: int) -> float:
        """Return the seconds of everything else in a round."""


_PRIOR_SHARES = (1.0, 1.47, 1.68, 1.81, 1.89, 1.95, 1.99, 2.03)
"""Tokens of a round with 1 .. 8 branches, as multiples of a round with one: whole decodes of the tiny model's
evaluation prompts, mean of both kinds (docs/measurements, 2026-11-21; 5 and 7 are between their neighbours)."""
_PRIOR_TOKENS = 4.4
"""Tokens of a round with one branch before anything is known, from the same prompts."""
_PRIOR_ROUNDS = 64.0
"""How many observed rounds the prior weighs as much as: what a round brings varies by more than its mean."""


class BranchBudget:
    """The estimate for one request."""

    def __init__(self, table: Costs) -> None:
        self._table = table
        self._tokens = [0.0] * MAX_AUTO_BRANCHES
        self._rounds = [0] * MAX_AUTO_BRANCHES
        """Observed, by number of branches - 1."""

    def lookaheads(self, confidences: Sequence[float], tokens: Sequence[int], anchor: Branch, context: Context) -> int:
        """Return how many lookaheads the next round, with this `anchor`, should have; learn from the round that ends.

        Its branches, the anchor last, had these `confidences`, and bring so many `tokens` if they win.
        """
        self.observe(confidences, tokens)
        left = int(np.count_nonzero(~anchor.unmasked))
        if not left:
            return 0
        if left == 1 and not next_block_size(anchor, 1.0, context.plan):
            return 1  # unmasks the last position, so that no forward is needed any more
        last, open_blocks = anchor.blocks[-1], anchor.due or anchor.active
        start = open_blocks[0].start if open_blocks else last.end
        grown = next_block_size(anchor, float(anchor.unmasked[last.start : last.end].mean()), context.plan)
        window = len(anchor.tokens) + grown - start + len(judged_positions(anchor, context))
        return self.branches(masked=left, window=window, prefix=tiles(start)) - 1

    def observe(self, confidences: Sequence[float], tokens: Sequence[int]) -> None:
        """Learn from a round: each branch's confidence, and the tokens it brings if it wins.

        Branches are in the order of the round, the anchor last. What a smaller number of branches would have brought
        is known exactly: its lookaheads are the first of these, and the anchor is the same.
        """
        lookaheads = len(confidences) - 1
        for count in range(1, lookaheads + 2):
            chosen = [*range(count - 1), lookaheads]
            winner = chosen[int(np.argmax([confidences[branch] for branch in chosen]))]
            self._tokens[count - 1] += tokens[winner]
            self._rounds[count - 1] += 1

    def branches(self, *, masked: int, window: int, prefix: int) -> int:
        """Return the number of branches for a round over `window` rows and `prefix` cache rows.

        `masked` positions are left in the window: no round can unmask more.
        """
        best, max_tokens_per_second = 1, 0.0
        for count, tokens in enumerate(self._expected_tokens(min(MAX_AUTO_BRANCHES, masked + 1)), start=1):
            seconds = self._table.seconds(count, window, prefix) + self._table.host_seconds(count)
            tokens_per_second = min(tokens, masked) / seconds
            if tokens_per_second > max_tokens_per_second:
                best, max_tokens_per_second = count, tokens_per_second
        return best

    def _expected_tokens(self, max_branches: int) -> Iterator[float]:
        """Yield the mean tokens of a round with 1 .. `max_branches` branches, weighing the prior.

        The prior of each number of branches is what one branch less is expected to bring, times what the next brought
        in general: so rounds also tell of numbers that were never tried.
        """
        expected = _PRIOR_TOKENS
        for number in range(max_branches):
            expected *= _PRIOR_SHARES[number] / _PRIOR_SHARES[max(number - 1, 0)]
            expected = (_PRIOR_ROUNDS * expected + self._tokens[number]) / (_PRIOR_ROUNDS + self._rounds[number])
            yield expected


def tokens_gained(branch: Branch, outcome: Outcome, ends: tuple[int, ...]) -> int:
    """Return what the answer gains if `branch` wins a round with this `outcome`, ends of text not counted.

    That is its lookahead token and what is unmasked, less what is remasked.
    """
    ahead = branch.lookahead is not None and branch.lookahead.token not in ends
    return int(ahead) + int((~is_end(outcome.fills.tokens, ends)).sum()) - len(outcome.remasked)
