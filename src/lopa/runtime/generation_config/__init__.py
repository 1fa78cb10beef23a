"""Decoding options of a request, and their resolution into a parameters.

`config` holds the requested options and the table of all options. `option_checks` checks combinations. `resolve`
merges requested options and defaults, makes the parameters of a decode, and chooses the number of branches.
"""

from lopa.runtime.generation_config.config import DEFAULT_OPTIONS as DEFAULT_OPTIONS
from lopa.runtime.generation_config.config import OPTION_TABLE as OPTION_TABLE
from lopa.runtime.generation_config.config import OPTIONS as OPTIONS
from lopa.runtime.generation_config.config import PACKAGE_DEFAULTS as PACKAGE_DEFAULTS
from lopa.runtime.generation_config.config import GenerationConfig as GenerationConfig
from lopa.runtime.generation_config.config import check_names as check_names
from lopa.runtime.generation_config.config import did_you_mean as did_you_mean
from lopa.runtime.generation_config.keyword_options import GenerationOptions as GenerationOptions
from lopa.runtime.generation_config.option_checks import MAYBE_UNREAD as MAYBE_UNREAD
from lopa.runtime.generation_config.option_checks import check_effects as check_effects
from lopa.runtime.generation_config.option_checks import reads_option as reads_option
from lopa.runtime.generation_config.resolve import DEFAULT_DEVICES as DEFAULT_DEVICES
from lopa.runtime.generation_config.resolve import BranchChoice as BranchChoice
from lopa.runtime.generation_config.resolve import ResolvedOptions as ResolvedOptions
from lopa.runtime.generation_config.resolve import branch_choice as branch_choice
from lopa.runtime.generation_config.resolve import checked_defaults as checked_defaults
from lopa.runtime.generation_config.resolve import defaults_beside as defaults_beside
from lopa.runtime.generation_config.resolve import may_share_rows as may_share_rows
from lopa.runtime.generation_config.resolve import merged_options as merged_options
from lopa.runtime.generation_config.resolve import options_from_defaults as options_from_defaults
from lopa.runtime.generation_config.resolve import params_from_options as params_from_options
from lopa.runtime.generation_config.resolve import reason_against_lookahead as reason_against_lookahead
from lopa.runtime.generation_config.resolve import resolve as resolve
from lopa.runtime.options.option import NO_PRESET as NO_PRESET
from lopa.runtime.options.option import PRESET_NAME as PRESET_NAME
