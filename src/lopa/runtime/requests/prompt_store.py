"""Rows of prompts that were computed before, for requests that begin with the same prompt.

With window="block_causal" the rows of a prompt see the whole prompt and nothing behind it: they depend on the prompt's
ids alone, and may be used again exactly when all of its ids are the same. (A shorter common beginning is not enough:
inside the prompt every row sees every other.) With window="full" they saw the masks behind the prompt, and the
reference mode is to be reproduced step for step: neither is stored. Knows arrays only, no session.
"""

from collections import OrderedDict
from dataclasses import dataclass

from lopa.runtime.contract import CacheRows, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.plan import DecodingPlan

PREFIX_CACHE_TOKENS = 4096
"""Rows to keep when nothing else is asked: 235 MB of Dream-7B in 16 bits, 10 MB of the tiny model in 32."""


@dataclass(frozen=True)
class StoredPrompt:
    """What the first round of a prompt leaves."""

    rows: CacheRows
    """Of the whole prompt."""
    last: RowStatistics | None
    """[K], of its last row, where rows predict the next position; of the tempered distribution, so that the temperature
    belongs to the key."""


class PromptStore:
    """The prompts used last, within a number of rows."""

    def __init__(self, most_rows: int) -> None:
        """`most_rows` 0 stores nothing."""
        self._most_rows = most_rows
        self._prompts: OrderedDict[tuple[bytes, float], StoredPrompt] = OrderedDict()
        self.rows = 0
        """Stored now."""
        self.rows_saved = 0
        """Handed out instead of computed, since the store was made."""

    def takes(self, prompt: Int64, plan: DecodingPlan) -> bool:
        """Whether the rows of this prompt may be stored and are not."""
        return _reusable(plan) and len(prompt) <= self._most_rows and _key(prompt, plan) not in self._prompts

    def holds(self, prompt: Int64, plan: DecodingPlan) -> bool:
        """Whether `find` would give something; this is no use of it."""
        return _reusable(plan) and _key(prompt, plan) in self._prompts

    def find(self, prompt: Int64, plan: DecodingPlan) -> StoredPrompt | None:
        """What was stored for the very same prompt, if the plan may use it."""
        if not _reusable(plan):
            return None
        found = self._prompts.get(_key(prompt, plan))
        if found is not None:
            self._prompts.move_to_end(_key(prompt, plan))
            self.rows_saved += found.rows.count
        return found

    def add(self, prompt: Int64, plan: DecodingPlan, stored: StoredPrompt) -> None:
        """Store a prompt that the store `takes`; those not used for longest go."""
        self._prompts[_key(prompt, plan)] = stored
        self.rows += stored.rows.count
        while self.rows > self._most_rows:
            _, oldest = self._prompts.popitem(last=False)
            self.rows -= oldest.rows.count


def _reusable(plan: DecodingPlan) -> bool:
    # With blocks counted from position 0 the last committed row need not be the prompt's last.
    return plan.window == "block_causal" and plan.alignment == "prompt" and not plan.reference


def _key(prompt: Int64, plan: DecodingPlan) -> tuple[bytes, float]:
    return prompt.tobytes(), plan.temperature or 1.0
