"""Stored rows of prompts, for requests with the same prompt.

With window="block_causal" the rows of a prompt attend to the whole prompt and nothing behind it. They depend only on
the prompt's ids, and can be reused exactly if all ids are equal. A common prefix is not enough, because every row
attends to the whole prompt. With window="full" rows also attend to the masked positions behind the prompt, and
reference mode reproduces every step. Neither is stored.
"""

from collections import OrderedDict
from dataclasses import dataclass

from lopa.runtime.contract import CacheRows, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.plan import DecodingPlan

PREFIX_CACHE_TOKENS = 4096
"""Default limit of stored tokens: 235 MB of Dream-7B in 16 bits, 10 MB of the tiny model in 32 bits."""


@dataclass(frozen=True)
class StoredPrompt:
    """The result of a prompt's first round."""

    rows: CacheRows
    """Rows of the whole prompt."""
    last: RowStatistics | None
    """[K]: statistics of its last row, if rows predict the next position. They depend on the temperature, which is
    therefore part of the key."""


class PromptStore:
    """The most recently used prompts, up to a number of rows."""

    def __init__(self, max_rows: int) -> None:
        """Store at most `max_rows` rows; 0 stores nothing."""
        self._max_rows = max_rows
        self._prompts: OrderedDict[tuple[bytes, float], StoredPrompt] = OrderedDict()
        self.rows = 0
        """Number of stored rows."""
        self.rows_saved = 0
        """Number of rows reused since the store was made."""

    def can_store(self, prompt: Int64, plan: DecodingPlan) -> bool:
        """Return True if this prompt may be stored and is not stored yet."""
        return _reusable(plan) and len(prompt) <= self._max_rows and _key(prompt, plan) not in self._prompts

    def contains(self, prompt: Int64, plan: DecodingPlan) -> bool:
        """Return True if `find` would return rows. This does not count as use."""
        return _reusable(plan) and _key(prompt, plan) in self._prompts

    def find(self, prompt: Int64, plan: DecodingPlan) -> StoredPrompt | None:
        """Return the rows of exactly this prompt, if stored and if the plan may use them."""
        if not _reusable(plan):
            return None
        found = self._prompts.get(_key(prompt, plan))
        if found is not None:
            self._prompts.move_to_end(_key(prompt, plan))
            self.rows_saved += found.rows.count
        return found

    def add(self, prompt: Int64, plan: DecodingPlan, stored: StoredPrompt) -> None:
        """Store a prompt for which `can_store` is True. The least recently used prompts are dropped."""
        self._prompts[_key(prompt, plan)] = stored
        self.rows += stored.rows.count
        while self.rows > self._max_rows:
            _, oldest = self._prompts.popitem(last=False)
            self.rows -= oldest.rows.count


def _reusable(plan: DecodingPlan) -> bool:
    # With blocks counted from position 0 the last committed row need not be the prompt's last.
    return plan.window == "block_causal" and plan.alignment == "prompt" and not plan.reference


def _key(prompt: Int64, plan: DecodingPlan) -> tuple[bytes, float]:
    return prompt.tobytes(), plan.temperature or 1.0
