"""Defaults of decoding options that the owner of a bundle or of a server sets, and how a request meets them.

Knows no manifest and no request.
"""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config.config import GenerationConfig
from lopa.runtime.generation_config.traits import left_out_for
from lopa.runtime.generation_config.words import GRAMMARS

_OF_A_REQUEST = frozenset({"seed", "json_schema", "regex", "grammar", "logprobs", "special_tokens", "published"})
"""Options that a request asks for itself: its draws, its grammar, what its answer tells, how its text is read."""
DEFAULT_OPTIONS = tuple(option.name for option in fields(GenerationConfig) if option.name not in _OF_A_REQUEST)
"""Names of the options that can have a default."""


def checked_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` as JSON holds them, which has no infinity: "inf".

    Raises BadInputError for names that are no option with a default. Whether the values can be used shows
    config_with_defaults.
    """
    for name in defaults:
        if name not in DEFAULT_OPTIONS:
            of_a_request = isinstance(name, str) and name in _OF_A_REQUEST
            raise BadInputError(
                f"a default for {shown(name)}" + (", which each request asks for itself" if of_a_request else ""),
                expected="options among " + ", ".join(DEFAULT_OPTIONS),
                remedy="correct or remove it",
            )
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    return {name: "inf" if value == math.inf else value for name, value in plain.items()}


def options_from_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults`, as checked_defaults made them, as options of GenerationConfig."""
    return {name: math.inf if value == "inf" else value for name, value in defaults.items()}


def defaults_beside(
    own: Mapping[str, Any], defaults: Mapping[str, Any], requested: Mapping[str, Any]
) -> dict[str, Any]:
    """Return those of `defaults` (options) that hold beside the options `requested`; `own` are those of the model.

    A default that cannot be used together with what is requested is left out, such as gamma where another strategy is
    requested. Only the default strategy stays as long as none is requested. Raises BadInputError where `requested` is
    wrong with that strategy and no other default.
    """
    # The text of a grammar is long to check and changes nothing here: that there is one does.
    requested = {name: "{}" if name in GRAMMARS and value is not None else value for name, value in requested.items()}
    strategy = {name: value for name, value in defaults.items() if name == "strategy" and name not in requested}
    base = {**_for_strategy(own, {**strategy, **requested}), **requested}
    others = {name: value for name, value in defaults.items() if name != "strategy" and name not in requested}
    if others and _is_valid({**base, **others}):
        return {**strategy, **others}
    GenerationConfig.from_mapping(base)
    kept = dict(strategy)
    while True:  # an option may need another one beside it
        added: dict[str, Any] = {}
        for name, value in others.items():
            if name not in kept and _is_valid({**base, **kept, **added, name: value}):
                added[name] = value
        if not added:
            return kept
        kept |= added


def config_with_defaults(
    own: Mapping[str, Any], defaults: Mapping[str, Any], requested: Mapping[str, Any]
) -> GenerationConfig:
    """Return the config of a request: the options `requested`, then `defaults`, then `own`, those of the model.

    What the strategy has no use for is left out of the latter two. Raises BadInputError for options that are unknown,
    wrong, or wrong together.
    """
    held = defaults_beside(own, defaults, requested) if defaults else {}
    return GenerationConfig.from_mapping({**_for_strategy(own, {**held, **requested}), **held, **requested})


def _for_strategy(own: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return `own` and the strategy that is named, if any, without what that has no use for."""
    strategy = {"strategy": named["strategy"]} if "strategy" in named else {}
    return {**own, **left_out_for(named.get("strategy")), **strategy}


def _is_valid(options: Mapping[str, Any]) -> bool:
    try:
        GenerationConfig.from_mapping(options)
    except BadInputError:
        return False
    return True
