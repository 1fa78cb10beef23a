"""Checks of options whose values are not simply a number, a switch or a choice.

Each returns the value as a plain Python value, or raises BadInputError.
"""

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from lopa.runtime.checked_values import check_float, check_int, invalid_value, is_unicode, shown
from lopa.runtime.errors import errors_as_bad_input
from lopa.runtime.options.choices import (
    MAX_BRANCHES,
    MAX_CHOICE_LENGTH,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARACTERS,
    MAX_POSITIONS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
)
from lopa.runtime.options.frozen_options import FrozenOptions

MAX_STRATEGY_OPTIONS = 64
PRESET_NAME = r"[a-z][a-z0-9_-]{0,31}"
"""Regular expression of a preset's name."""
NO_PRESET = "none"
"""Value of the option `preset` that selects no preset."""


def checked_seed(seed: Any) -> int:
    """Return `seed`, or a random one for None."""
    if seed is None:
        return secrets.randbits(32)
    return check_int("seed", seed, min=0, max=2**63 - 1)


def checked_preset(name: Any) -> str:
    """Return the name of a preset. The bundle determines which ones exist."""
    if not isinstance(name, str) or not re.fullmatch(PRESET_NAME, name):
        expected = f"the name of a preset of the bundle, or {NO_PRESET}"
        raise invalid_value("preset", name, expected, "set preset to one of these")
    return str(name)


def checked_branches(branches: Any) -> int | str:
    """Return a number of branches, or "auto"."""
    if isinstance(branches, str) and branches == "auto":
        return "auto"
    return check_int("branches", branches, min=1, max=MAX_BRANCHES)


def checked_temperature(temperature: Any) -> float:
    """Return 0, or a temperature within the bounds."""
    given = check_float("temperature", temperature, min=0.0, max=MAX_TEMPERATURE)
    if 0.0 < given < MIN_TEMPERATURE:
        expected = f"0, or from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
        raise invalid_value("temperature", temperature, expected, "use 0, which decodes greedily")
    return given


def checked_strategy_options(options: Any) -> FrozenOptions:
    """Return the options of an installed strategy. The strategy checks their names and values."""
    allowed = (bool, int, float, str)
    if (
        not isinstance(options, Mapping)
        or len(options) > MAX_STRATEGY_OPTIONS
        or not all(isinstance(name, str) and isinstance(value, allowed) for name, value in options.items())
    ):
        expected = f"at most {MAX_STRATEGY_OPTIONS} names, each with a boolean, number or string as value"
        raise invalid_value("strategy_options", options, expected)
    return FrozenOptions(options)


def checked_stop(stop: Any) -> tuple[str, ...]:
    """Return the texts that end an answer."""
    texts = tuple(stop[: MAX_STOPS + 1]) if isinstance(stop, (list, tuple)) else None
    if texts is None or not all(isinstance(text, str) and text and is_unicode(text) for text in texts):
        raise invalid_value("stop", stop, "a list of non-empty Unicode strings", 'e.g. stop=("\\n\\n",)')
    if len(texts) > MAX_STOPS or max(map(len, texts), default=0) > MAX_STOP_CHARACTERS:
        expected = f"at most {MAX_STOPS} strings of at most {MAX_STOP_CHARACTERS} characters"
        raise invalid_value("stop", stop, expected, "use fewer or shorter strings")
    return tuple(map(str, texts))


def checked_schema(value: Any) -> str:
    """Return the text of a JSON schema, given as an object or as text. Names keep their order."""
    received, expected = f"invalid json_schema {shown(value)}", "a JSON schema (an object)"
    with errors_as_bad_input(received, expected=expected, remedy="correct json_schema"):
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, Mapping):
            return check_grammar("json_schema", json.dumps(dict(schema), ensure_ascii=False, allow_nan=False))
    raise invalid_value("json_schema", value, expected)


def check_grammar(name: str, value: Any) -> str:
    """Return the text of a grammar."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_GRAMMAR_CHARACTERS or not is_unicode(value):
        raise invalid_value(name, value, f"Unicode text of 1 to {MAX_GRAMMAR_CHARACTERS} characters")
    return str(value)


def checked_choices(choices: Any) -> tuple[str | tuple[int, ...], ...]:
    """Return the answers to choose from: texts, and token IDs whose range the bundle determines."""
    given = choices[: MAX_CHOICES + 1] if isinstance(choices, (list, tuple)) else ()
    if not 1 <= len(given) <= MAX_CHOICES:
        expected = f"a list of 1 to {MAX_CHOICES} texts or lists of token IDs"
        raise invalid_value("choices", choices, expected, 'e.g. ["yes", "no"]')
    return tuple(map(_checked_choice, given))


def _checked_choice(choice: Any) -> str | tuple[int, ...]:
    is_text = isinstance(choice, str)
    if (is_text or isinstance(choice, (list, tuple))) and 0 < len(choice) <= MAX_CHOICE_LENGTH:
        if is_text and is_unicode(choice):
            return str(choice)
        if not is_text:
            return tuple(check_int("choices", each, min=0, max=MAX_POSITIONS) for each in choice)
    expected = f"Unicode texts or lists of token IDs, each with 1 to {MAX_CHOICE_LENGTH} characters or IDs"
    raise invalid_value("choices", choice, expected, "correct this choice")
