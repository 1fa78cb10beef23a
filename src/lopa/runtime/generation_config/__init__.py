"""How to decode: one frozen, checked record. Knows no model; a bundle's own defaults come in as overrides.

`options` has the options and their flags' texts, `words` what they may say, `traits` what each strategy means for the
others; `value_checks` and `option_checks` refuse what cannot be; `config` is the record that all others are given;
`defaults` says how a request meets the defaults that the owner of a bundle or of a server sets.
"""

from lopa.runtime.generation_config.config import GenerationConfig, plan_from_config
from lopa.runtime.generation_config.defaults import (
    DEFAULT_OPTIONS,
    checked_defaults,
    config_with_defaults,
    defaults_beside,
    options_from_defaults,
)
from lopa.runtime.generation_config.keyword_options import GenerationOptions
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
    "DEFAULT_OPTIONS",
    "GRAMMARS",
    "MOST_AUTO_BRANCHES",
    "MOST_BRANCHES",
    "MOST_POSITIONS",
    "TRAITS",
    "WHOLE_CACHES",
    "GenerationConfig",
    "GenerationOptions",
    "Strategy",
    "Traits",
    "Window",
    "checked_defaults",
    "config_with_defaults",
    "defaults_beside",
    "left_out_for",
    "options_from_defaults",
    "plan_from_config",
]
