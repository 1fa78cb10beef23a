"""Checks of options that stand alone. Each returns the value as a plain one of Python or raises BadInputError."""

import json
import math
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from lopa.runtime.checked_values import is_unicode, real_number, shown, whole_number
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input
from lopa.runtime.generation_config.words import (
    LEAST_TEMPERATURE,
    MOST_GRAMMAR_CHARACTERS,
    MOST_STOP_CHARACTERS,
    MOST_STOPS,
    MOST_TEMPERATURE,
)


def checked_seed(seed: Any) -> int:
    """`seed`, or a drawn one for None."""
    if seed is None:
        return secrets.randbits(32)
    return whole_number("seed", seed, least=0, most=2**63 - 1)


def checked_temperature(temperature: Any) -> float:
    """0, or a temperature by which logits can be divided."""
    given = real_number("temperature", temperature, least=0.0, most=MOST_TEMPERATURE)
    if 0.0 < given < LEAST_TEMPERATURE:
        raise BadInputError(
            f"temperature {shown(temperature)}",
            expected=f"0, or from {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g}",
            remedy="use 0, which decodes greedily",
        )
    return given


def checked_gamma(gamma: Any) -> float:
    """A bound of entropy, infinity included."""
    unbounded = isinstance(gamma, (float, np.floating)) and gamma == math.inf
    if unbounded:
        return math.inf
    try:
        return real_number("gamma", gamma, least=0.0)
    except BadInputError as error:
        raise BadInputError(error.received, expected="0 or more, or inf", remedy="correct gamma, e.g. 0.2") from error


def checked_stop(stop: Any) -> tuple[str, ...]:
    """Texts that end an answer."""
    texts = tuple(stop[: MOST_STOPS + 1]) if isinstance(stop, (list, tuple)) else None
    if texts is None or not all(isinstance(text, str) and text and is_unicode(text) for text in texts):
        raise BadInputError(
            f"stop {shown(stop)}",
            expected="a list of strings of Unicode text that are not empty",
            remedy='e.g. stop=("\\n\\n",)',
        )
    if len(texts) > MOST_STOPS or max(map(len, texts), default=0) > MOST_STOP_CHARACTERS:
        raise BadInputError(
            f"stop {shown(stop)}",
            expected=f"at most {MOST_STOPS} strings of at most {MOST_STOP_CHARACTERS} characters",
            remedy="give fewer or shorter ones",
        )
    return tuple(map(str, texts))


def checked_schema(value: Any) -> str | None:
    """A JSON schema, an object or its text, as text; the names stay in their order."""
    if value is None:
        return None
    received, expected = f"json_schema {shown(value)}", "a JSON schema: an object"
    with refused_as_bad_input(received, expected=expected, remedy="correct json_schema"):
        schema = json.loads(value) if isinstance(value, str) else value
        if isinstance(schema, Mapping):
            return checked_grammar("json_schema", json.dumps(dict(schema), ensure_ascii=False, allow_nan=False))
    raise BadInputError(received, expected=expected, remedy="correct json_schema")


def checked_grammar(name: str, value: Any) -> str | None:
    """A text that says which form an answer has."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MOST_GRAMMAR_CHARACTERS or not is_unicode(value):
        raise BadInputError(
            f"{name} {shown(value)}",
            expected=f"Unicode text of 1 to {MOST_GRAMMAR_CHARACTERS} characters",
            remedy=f"correct {name}",
        )
    return str(value)
