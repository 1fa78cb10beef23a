"""Stage 2: which open positions of a block may count as certain. Pure.

What a request may not decide at all is not `open`: not even as the best of a block that has to decide something.
"""

from collections.abc import Callable

from lopa.runtime.contract import Bool
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.strategy.open_block import OpenBlock

Eligible = Callable[[OpenBlock, GenerationConfig], Bool]
"""[n] of a block's n positions."""


def every(block: OpenBlock, config: GenerationConfig) -> Bool:  # noqa: ARG001
    """All that are open."""
    return block.open
