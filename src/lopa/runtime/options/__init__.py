"""The decoding params of a request: the value of every option, and the choices and bounds of options."""

from lopa.runtime.options.choices import (
    CONSTRAINTS,
    DEFAULT_BRANCHES,
    GRAMMARS,
    MAX_AUTO_BRANCHES,
    MAX_BRANCHES,
    MAX_POSITIONS,
    WHOLE_CACHES,
    Attention,
    StrategyName,
)
from lopa.runtime.options.decoding_params import DecodingParams

__all__ = [
    "CONSTRAINTS",
    "DEFAULT_BRANCHES",
    "GRAMMARS",
    "MAX_AUTO_BRANCHES",
    "MAX_BRANCHES",
    "MAX_POSITIONS",
    "WHOLE_CACHES",
    "Attention",
    "DecodingParams",
    "StrategyName",
]
