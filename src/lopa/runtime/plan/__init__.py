"""The decoding plan of a request: the value of every option, and the choices and bounds of options."""

from lopa.runtime.plan.choices import (
    CONSTRAINTS,
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
    "CONSTRAINTS",
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
