"""How to decode: one frozen, checked record. Knows no model; a bundle's own defaults come in as overrides.

`options` has the options and their flags' texts, `words` what they may say, `traits` what each strategy means for the
others; `value_checks` and `option_checks` refuse what cannot be; `config` is the record that all others are given.
"""

from lopa.runtime.generation_config.config import GenerationConfig
from lopa.runtime.generation_config.traits import TRAITS, Traits, left_out_for
from lopa.runtime.generation_config.words import (
    DEFAULT_BRANCHES,
    GRAMMARS,
    MOST_AUTO_BRANCHES,
    MOST_BRANCHES,
    MOST_POSITIONS,
    WHOLE_CACHES,
    Strategy,
    Window,
)

__all__ = [
    "DEFAULT_BRANCHES",
    "GRAMMARS",
    "MOST_AUTO_BRANCHES",
    "MOST_BRANCHES",
    "MOST_POSITIONS",
    "TRAITS",
    "WHOLE_CACHES",
    "GenerationConfig",
    "Strategy",
    "Traits",
    "Window",
    "left_out_for",
]
