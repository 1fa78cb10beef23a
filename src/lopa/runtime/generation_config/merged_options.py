"""Merge the options of a request with the defaults of the bundle or server, the model and the package.

Defaults of a bundle or server are JSON values, which are checked here too.
"""

import math
from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import (
    DEFAULT_OPTIONS,
    OPTIONS,
    PACKAGE_DEFAULTS,
    PER_REQUEST,
    GenerationConfig,
    checked_options,
    did_you_mean,
)
from lopa.runtime.generation_config.option_checks import Options, check_together
from lopa.runtime.strategy import strategy_from_name

NOTHING: Options = {}
_USUAL: Options = {**dict.fromkeys(OPTIONS), **GenerationConfig().requested(), **PACKAGE_DEFAULTS}


def merged_options(config: GenerationConfig, *, own: Options = NOTHING, defaults: Options = NOTHING) -> Options:
    """Return every option by name: the requested value, or otherwise the value of `defaults`, `own` (the model) or the
    package.

    Defaults that the strategy does not use, or that contradict a requested option, are dropped. Options without any
    value are None. Raises BadInputError for unknown options, invalid values and invalid combinations.
    """
    requested, own, defaults = config.requested(), checked_options(own), checked_options(defaults)
    try:
        return _merge({**defaults, **requested}, own)
    except BadInputError:
        if not defaults:
            raise
    return _merge({**_applicable_defaults(own, defaults, requested), **requested}, own)


def defaults_beside(own: Options, defaults: Options, requested: Options) -> dict[str, Any]:
    """Return the `defaults` that apply together with the `requested` options; `own` are the model's.

    A default that contradicts a requested option is dropped, e.g. gamma if another strategy is requested. The default
    strategy applies unless one is requested. Raises BadInputError if the requested options are invalid with it.
    """
    return _applicable_defaults(checked_options(own), checked_options(defaults), checked_options(requested))


def _applicable_defaults(own: Options, defaults: Options, requested: Options) -> dict[str, Any]:
    strategy = {name: value for name, value in defaults.items() if name == "strategy" and name not in requested}
    base = {**strategy, **requested}
    others = {name: value for name, value in defaults.items() if name not in base}
    if others and _is_valid({**base, **others}, own):
        return {**strategy, **others}
    _merge(base, own)
    found = dict(strategy)
    while True:  # an option may need another one
        added: dict[str, Any] = {}
        for name, value in others.items():
            if name not in found and _is_valid({**base, **found, **added, name: value}, own):
                added[name] = value
        if not added:
            return found
        found |= added


def _merge(given: Options, own: Options) -> Options:
    """Return every option: the `given` value, or otherwise the value of `own` or the package, adapted to strategy and
    alignment.

    Raises BadInputError for invalid combinations.
    """
    usual: dict[str, Any] = {**_USUAL, **own}
    merged = {**usual, **given}
    strategy, slides = strategy_from_name(merged["strategy"]), merged["alignment"] == "sliding"
    if strategy.default_cache is not None:
        usual["cache"] = strategy.default_cache
    if strategy.whole or slides:
        usual["sub_block"] = None
    if not strategy.block_steps or slides:
        usual["block_steps"] = None
    options = {**usual, **given}
    if strategy.whole:
        options["block_size"] = options["max_new_tokens"]
        options["cache"] = "none" if options["cache"] == "blocks" else options["cache"]
    check_together(options, strategy)
    return options


def _is_valid(given: Options, own: Options) -> bool:
    try:
        _merge(given, own)
    except BadInputError:
        return False
    return True


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
