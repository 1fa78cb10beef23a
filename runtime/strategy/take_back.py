"""Stage 5: which decided positions of active blocks a step undecides again. Pure."""

from collections.abc import Callable

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.memory import Memory

TakeBack = Callable[[Int64, Float32, Memory | None, GenerationConfig], Int64]
"""Of decided positions [m] of active blocks, how probable their tokens are now [m], and the branch's memory: those to
take back."""
