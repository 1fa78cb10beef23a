"""The decoding params of a request: the value of every option, and the choices and bounds of options."""

from lopa.runtime.options.decoding_params import DecodingParams as DecodingParams
from lopa.runtime.options.option import CONSTRAINTS as CONSTRAINTS
from lopa.runtime.options.option import DEFAULT_BRANCHES as DEFAULT_BRANCHES
from lopa.runtime.options.option import GRAMMARS as GRAMMARS
from lopa.runtime.options.option import MAX_AUTO_BRANCHES as MAX_AUTO_BRANCHES
from lopa.runtime.options.option import MAX_BRANCHES as MAX_BRANCHES
from lopa.runtime.options.option import MAX_POSITIONS as MAX_POSITIONS
from lopa.runtime.options.option import WHOLE_CACHES as WHOLE_CACHES
from lopa.runtime.options.option import Attention as Attention
from lopa.runtime.options.option import StrategyName as StrategyName
