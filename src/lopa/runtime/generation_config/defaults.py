"""Defaults of decoding options, set by a bundle or a server."""

import math
from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import DEFAULT_OPTIONS, PER_REQUEST, did_you_mean


def checked_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` as JSON values, with "inf" for infinity.

    Raises BadInputError for names that are not in DEFAULT_OPTIONS. `resolve` checks the values.
    """
    for name in defaults:
        if name not in DEFAULT_OPTIONS:
            per_request = name in PER_REQUEST
            raise BadInputError(
                f"invalid default for {shown(name)}, "
                + ("which only requests can set" if per_request else "an unknown option"),
                expected="one of " + ", ".join(DEFAULT_OPTIONS),
                remedy="remove it" if per_request else did_you_mean(name, DEFAULT_OPTIONS),
            )
    return {name: _in_json(value) for name, value in defaults.items()}


def options_from_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of checked_defaults as options of GenerationConfig."""
    return {name: math.inf if value == "inf" else value for name, value in defaults.items()}


def _in_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else "inf" if value == math.inf else value
