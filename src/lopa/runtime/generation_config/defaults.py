"""Defaults of decoding options, set by the package, a bundle or a server."""

import math
from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import OPTIONS

PACKAGE_DEFAULTS: Mapping[str, Any] = {
    "strategy": "lopa",
    "block_size": 32,
    "block_add_threshold": 0.1,
    "decoded_token_threshold": 0.95,
    "skip_threshold": 0.9,
    "unmask_first_masked": False,
    "confidence": "neg_entropy",
    "window": "full",
    "alignment": "prompt",
    "cache": "blocks",
    "max_new_tokens": 256,
    "temperature": 0.0,
    "stop": (),
    "stop_at_eos": True,
    "drop_after_eos": True,
    "speculative": False,
    "anytime": False,
}
"""Values of options that neither a request nor a bundle sets. Other options have no constant default."""
_PER_REQUEST = frozenset(
    {
        *("seed", "json_schema", "regex", "grammar", "choices"),
        *("logprobs", "top_logprobs", "special_tokens", "reference", "eos_early_stop"),
    }
)
"""Options that only a request can set."""
DEFAULT_OPTIONS = tuple(name for name in OPTIONS if name not in _PER_REQUEST)
"""Names of the options that a bundle or server can set."""


def checked_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` as JSON values, with "inf" for infinity.

    Raises BadInputError for names that are not in DEFAULT_OPTIONS. `resolve` checks the values.
    """
    for name in defaults:
        if name not in DEFAULT_OPTIONS:
            per_request = isinstance(name, str) and name in _PER_REQUEST
            raise BadInputError(
                f"invalid default for {shown(name)}, "
                + ("which only requests can set" if per_request else "an unknown option"),
                expected="one of " + ", ".join(DEFAULT_OPTIONS),
                remedy="correct or remove it",
            )
    return {name: _in_json(value) for name, value in defaults.items()}


def options_from_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of checked_defaults as options of GenerationConfig."""
    return {name: math.inf if value == "inf" else value for name, value in defaults.items()}


def _in_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
