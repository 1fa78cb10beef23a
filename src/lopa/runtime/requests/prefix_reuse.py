"""Rule for the rows that requests share, and their place in the tree of prefixes.

A row is reused where everything that it attends to is equal. There are three cases:

- **Blocks counted from position 0, attention="block_causal"** (SDAR, LLaDA2, Fast-dLLM v2, Stable-DiffCoder). A row
  attends to its own block and earlier ones. A block is reused if all ids up to its end are equal.
- **A sliding block, attention="causal"** (WeDLM). A row attends to itself and earlier rows. Requests with any
  block size share rows, in blocks of the tree.
- **Blocks counted from the end of the prompt, attention="block_causal"** (D2F). The prompt is one block, and only whole
  prompts are reused. Answers are not, because their blocks begin elsewhere in the next prompt.

With attention="full" a row attends to masked positions behind it, so that it depends on the round. Reference mode
reproduces every step. Neither is reused. Temperature, seed, strategy and grammar do not change rows. If a row predicts
the next position, the statistics of a prompt's last row are needed too, and they depend on the temperature.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from lopa.runtime.contract import Int64
from lopa.runtime.options import DecodingParams

CAUSAL_BLOCK = 16
"""Tokens per block of the tree for causal rows."""


@dataclass(frozen=True)
class PrefixReuse:
    """The blocks of a request's tokens in the tree."""

    key: Hashable
    """Key of the root: everything besides ids that the rows or their statistics depend on."""
    block: int
    """Tokens per block."""
    limit: int
    """Maximum number of prompt tokens to reuse, a multiple of `block`."""
    whole_prompt: bool
    """True if the prompt is the only block."""

    def blocks(self, ids: Int64) -> Iterator[bytes]:
        """Return the complete blocks of `ids` [n] that may be reused at the start of a request."""
        for start in range(0, min(len(ids) // self.block * self.block, self.limit), self.block):
            yield ids[start : start + self.block].tobytes()


def prefix_reuse(
    prompt: int, params: DecodingParams, prediction_shift: int, cache_salt: str | None = None
) -> PrefixReuse | None:
    """Return how rows of a request with `prompt` tokens may be reused, or None if they may not.

    With `prediction_shift` 1 a row predicts the next position. The last row of the prompt is then computed again, if it
    predicts a masked position. Requests with different values of `cache_salt` share nothing.
    """
    if params.reference:
        return None
    last_row = 1 if prediction_shift else 0
    if params.slides and params.attention == "causal":
        key: Hashable = ("causal", cache_salt)
        return PrefixReuse(key, CAUSAL_BLOCK, (prompt - last_row) // CAUSAL_BLOCK * CAUSAL_BLOCK, whole_prompt=False)
    if params.attention != "block_causal":
        return None
    if params.alignment == "absolute":
        size = params.block_size
        return PrefixReuse(("blocks", size, cache_salt), size, (prompt - last_row) // size * size, whole_prompt=False)
    if params.alignment == "prompt":
        temperature = params.logits_temperature if prediction_shift else None
        return PrefixReuse(("prompt", temperature, cache_salt), prompt, prompt, whole_prompt=True)
    return None
