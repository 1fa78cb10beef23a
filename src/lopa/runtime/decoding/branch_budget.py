"""Choose the number of branches of the next round: branches="auto" (docs/how-to/choose-a-strategy.md).

A lookahead branch yields tokens and costs time. The budget reads the cost of a forward from the device's cost table. It
estimates the yield of each number of branches from past rounds, and chooses the number with the most expected tokens
per second. It depends on no other request, so a request decodes the same alone and in any batch.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from lopa.runtime.bundle.costs import CostTable
from lopa.runtime.contract import tiles
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.extension import LoopState
from lopa.runtime.decoding.remask import remaskable_positions
from lopa.runtime.decoding.round import RoundEnd, RoundOutcome, branch_again, score_branches, unmask
from lopa.runtime.options import MAX_AUTO_BRANCHES
from lopa.runtime.state.branch import Branch, is_end
from lopa.runtime.state.context import Context
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.state.pipeline import next_anchor, next_block_size

_PRIOR_SHARES = (1.0, 1.47, 1.68, 1.81, 1.89, 1.95, 1.99, 2.03)
"""Tokens of a round with 1 to 8 branches relative to one branch. They are means over whole decodes of the tiny model's
evaluation prompts (docs/measurements, 2026-11-21). The values for 5 and 7 are interpolated."""
_PRIOR_TOKENS = 4.4
"""Tokens of a round with one branch before any observation, from the same prompts."""
_PRIOR_ROUNDS = 64.0
"""Weight of the prior, in rounds. Yields vary by more than their mean."""


class BranchBudget:
    """The estimate of one request."""

    def __init__(self, table: CostTable) -> None:
        self._table = table
        self._tokens = [0.0] * MAX_AUTO_BRANCHES
        self._rounds = [0] * MAX_AUTO_BRANCHES
        """Observed tokens and rounds, by number of branches - 1."""

    def candidates(self, loop: LoopState, packed: PackedRows, rows: RowStatistics) -> RoundEnd:
        """Return the end of a round, with the number of lookaheads that the yields of all branches suggest."""
        context = loop.context
        scores = score_branches(loop.branches, packed, rows, loop.strategy_steps + 1, context)
        outcomes = [unmask(scores, number, context, loop.after_unmasking) for number in range(len(scores.branches))]
        gains = [tokens_gained(*pair, context.ends) for pair in zip(scores.branches, outcomes, strict=True)]
        outcome = outcomes[scores.view.winner]
        anchor = next_anchor(outcome.branch)
        count = self.lookaheads(scores.confidences, gains, anchor, context)
        return branch_again(scores, rows, outcome, count, context)

    def lookaheads(self, confidences: Sequence[float], tokens: Sequence[int], anchor: Branch, context: Context) -> int:
        """Learn from the current round, and return the number of lookaheads for the next round, which has this
        `anchor`.

        `confidences` and `tokens` have one value per branch of the current round, the anchor last. `tokens` holds the
        number of tokens that each branch yields if it wins.
        """
        self.observe(confidences, tokens)
        left = int(np.count_nonzero(~anchor.unmasked))
        if not left:
            return 0
        if left == 1 and not context.params.edits and not next_block_size(anchor, 1.0, context.params):
            return 1  # the lookahead token is written at the last position, so no further forward is needed
        last, open_blocks = anchor.blocks[-1], anchor.due or anchor.active
        start = open_blocks[0].start if open_blocks else last.end
        grown = next_block_size(anchor, float(anchor.unmasked[last.start : last.end].mean()), context.params)
        window = len(anchor.tokens) + grown - start + len(remaskable_positions(anchor, context))
        return self.branches(masked=left, window=window, prefix=tiles(start)) - 1

    def observe(self, confidences: Sequence[float], tokens: Sequence[int]) -> None:
        """Learn from a round: each branch's confidence, and the tokens that it yields if it wins.

        Branches are in the order of the round, the anchor last. The yield of any smaller number of branches is known
        exactly, since its lookaheads are the first ones and its anchor is the same.
        """
        lookaheads = len(confidences) - 1
        for count in range(1, lookaheads + 2):
            chosen = [*range(count - 1), lookaheads]
            winner = chosen[int(np.argmax([confidences[branch] for branch in chosen]))]
            self._tokens[count - 1] += tokens[winner]
            self._rounds[count - 1] += 1

    def branches(self, *, masked: int, window: int, prefix: int) -> int:
        """Return the number of branches for a round over `window` rows and `prefix` cached rows.

        `masked` is the number of masked positions in the window, an upper bound of the tokens of a round.
        """
        best, max_tokens_per_second = 1, 0.0
        for count, tokens in enumerate(self._expected_tokens(min(MAX_AUTO_BRANCHES, masked + 1)), start=1):
            seconds = self._table.seconds(count, window, prefix) + self._table.host_seconds(count)
            tokens_per_second = min(tokens, masked) / seconds
            if tokens_per_second > max_tokens_per_second:
                best, max_tokens_per_second = count, tokens_per_second
        return best

    def _expected_tokens(self, max_branches: int) -> Iterator[float]:
        """Yield the mean tokens of a round with 1 to `max_branches` branches, weighted with the prior.

        The prior for n branches is the estimate for n - 1 branches times the usual gain of one more branch. The
        estimate for an untried number of branches therefore uses observations of smaller numbers.
        """
        expected = _PRIOR_TOKENS
        for number in range(max_branches):
            expected *= _PRIOR_SHARES[number] / _PRIOR_SHARES[max(number - 1, 0)]
            expected = (_PRIOR_ROUNDS * expected + self._tokens[number]) / (_PRIOR_ROUNDS + self._rounds[number])
            yield expected


def tokens_gained(branch: Branch, outcome: RoundOutcome, ends: tuple[int, ...]) -> int:
    """Return the tokens that the answer gains if `branch` wins a round with this `outcome`, without ends of text.

    These are its lookahead token and the unmasked tokens, less the remasked ones.
    """
    has_text = branch.lookahead is not None and branch.lookahead.token not in ends
    return int(has_text) + int((~is_end(outcome.unmasked.tokens, ends)).sum()) - len(outcome.remasked)
