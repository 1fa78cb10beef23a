"""The decoding plan of a request: every option with the value that holds, and the values that options can have."""

from lopa.runtime.plan.choices import (
    DEFAULT_BRANCHES,
    GRAMMARS,
    MAX_AUTO_BRANCHES,
    MAX_BRANCHES,
    MAX_POSITIONS,
    WHOLE_CACHES,
    StrategyName,
    Window,
)
from lopa.runtime.plan.plan import DecodingPlan

__all__ = [
    "DEFAULT_BRANCHES",
    "GRAMMARS",
    "MAX_AUTO_BRANCHES",
    "MAX_BRANCHES",
    "MAX_POSITIONS",
    "WHOLE_CACHES",
    "DecodingPlan",
    "StrategyName",
    "Window",
]
