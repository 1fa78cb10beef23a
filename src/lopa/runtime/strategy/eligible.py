"""Stage 2: which open positions of a block may count as certain. Pure.

What a request may not decide at all is not `open`: not even as the best of a block that has to decide something.
"""

from collections.abc import Callable

from lopa.runtime.contract import Bool
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.history.divergences import Divergences
from lopa.runtime.strategy.open_block import OpenBlock

Eligible = Callable[[OpenBlock, GenerationConfig], Bool]
"""[n] of a block's n positions."""


def settled(block: OpenBlock, config: GenerationConfig) -> Bool:
    """Those of which the model said nearly the same in the last steps (KLASS)."""
    assert isinstance(block.memory, Divergences)
    return block.memory.settled(block.positions, config.settled_divergence)


def every(block: OpenBlock, config: GenerationConfig) -> Bool:  # noqa: ARG001
    """All that are open."""
    return block.open
