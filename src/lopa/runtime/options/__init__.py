"""The decoding params of a request: the value of every option, and the choices and bounds of options."""

from lopa.runtime.options.choices import CONSTRAINTS as CONSTRAINTS
from lopa.runtime.options.choices import DEFAULT_BRANCHES as DEFAULT_BRANCHES
from lopa.runtime.options.choices import GRAMMARS as GRAMMARS
from lopa.runtime.options.choices import MAX_AUTO_BRANCHES as MAX_AUTO_BRANCHES
from lopa.runtime.options.choices import MAX_BRANCHES as MAX_BRANCHES
from lopa.runtime.options.choices import MAX_POSITIONS as MAX_POSITIONS
from lopa.runtime.options.choices import WHOLE_CACHES as WHOLE_CACHES
from lopa.runtime.options.choices import Attention as Attention
from lopa.runtime.options.choices import StrategyName as StrategyName
from lopa.runtime.options.decoding_params import DecodingParams as DecodingParams
