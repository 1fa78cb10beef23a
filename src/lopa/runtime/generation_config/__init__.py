"""Decoding options of a request, and their resolution into a plan.

`config` holds the requested options. `value_checks` checks single options and `option_checks` combinations. `defaults`
has the package's defaults and checks the defaults of bundles and servers. `merged_options` merges all of them.
`resolve` makes the plan, with the number of branches from `branch_choice`. `help_texts` reads the docstring of
GenerationConfig.
"""

from lopa.runtime.generation_config.branch_choice import (
    BranchChoice,
    branch_choice,
    may_share_rows,
    reason_against_lookahead,
)
from lopa.runtime.generation_config.config import OPTIONS, GenerationConfig
from lopa.runtime.generation_config.defaults import (
    DEFAULT_OPTIONS,
    PACKAGE_DEFAULTS,
    checked_defaults,
    options_from_defaults,
)
from lopa.runtime.generation_config.help_texts import HelpText, help_texts
from lopa.runtime.generation_config.keyword_options import GenerationOptions
from lopa.runtime.generation_config.merged_options import defaults_beside, merged_options
from lopa.runtime.generation_config.resolve import DEFAULT_DEVICES, resolve
from lopa.runtime.generation_config.value_checks import NO_PROFILE, PROFILE_NAME

__all__ = [
    "DEFAULT_DEVICES",
    "DEFAULT_OPTIONS",
    "NO_PROFILE",
    "OPTIONS",
    "PACKAGE_DEFAULTS",
    "PROFILE_NAME",
    "BranchChoice",
    "GenerationConfig",
    "GenerationOptions",
    "HelpText",
    "branch_choice",
    "checked_defaults",
    "defaults_beside",
    "help_texts",
    "may_share_rows",
    "merged_options",
    "options_from_defaults",
    "reason_against_lookahead",
    "resolve",
]
