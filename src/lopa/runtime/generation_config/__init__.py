"""Decoding options of a request, and their resolution into a parameters.

`config` holds the requested options and the table of all options. `option_checks` checks combinations.
`merged_options` checks the defaults of bundles and servers, and merges all of them. `resolve` makes the parameters of a
decode, and chooses the number of branches.
"""

from lopa.runtime.generation_config.config import (
    DEFAULT_OPTIONS,
    NULLABLE,
    OPTION_TABLE,
    OPTIONS,
    PACKAGE_DEFAULTS,
    GenerationConfig,
    check_names,
    did_you_mean,
)
from lopa.runtime.generation_config.keyword_options import GenerationOptions
from lopa.runtime.generation_config.merged_options import (
    checked_defaults,
    defaults_beside,
    merged_options,
    options_from_defaults,
)
from lopa.runtime.generation_config.resolve import (
    DEFAULT_DEVICES,
    BranchChoice,
    ResolvedOptions,
    branch_choice,
    may_share_rows,
    params_from_options,
    reason_against_lookahead,
    resolve,
)
from lopa.runtime.options.option import NO_PRESET, PRESET_NAME

__all__ = [
    "DEFAULT_DEVICES",
    "DEFAULT_OPTIONS",
    "NO_PRESET",
    "NULLABLE",
    "OPTIONS",
    "OPTION_TABLE",
    "PACKAGE_DEFAULTS",
    "PRESET_NAME",
    "BranchChoice",
    "GenerationConfig",
    "GenerationOptions",
    "ResolvedOptions",
    "branch_choice",
    "check_names",
    "checked_defaults",
    "defaults_beside",
    "did_you_mean",
    "may_share_rows",
    "merged_options",
    "options_from_defaults",
    "params_from_options",
    "reason_against_lookahead",
    "resolve",
]
