"""Checks of single values from a caller. Each returns a plain Python value or raises BadInputError.

Values may come from untrusted sources. A value is checked before anything is computed from it or allocated for it. An
error shows only the beginning of a long value.
"""

import json
import math
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any

import numpy as np

from lopa.runtime.errors import BadInputError

MAX_SECONDS = 1e9
"""Upper limit of durations, about 30 years. Every system's wait functions accept it."""
_MAX_SHOWN_CHARACTERS = 80
"""Maximum number of characters of a value in an error."""
VALUES_IN_JSON = ContextVar("VALUES_IN_JSON", default=False)
"""True if errors write values as a client sent them: null instead of None."""


def shown(value: object) -> str:
    """Return a short printable form of any `value` for an error."""
    try:
        if isinstance(value, list | tuple):  # cuts a long list before its repr is computed
            value = list(islice(value, _MAX_SHOWN_CHARACTERS)) if len(value) > _MAX_SHOWN_CHARACTERS else value
        text = json.dumps(value, ensure_ascii=False, default=dict) if VALUES_IN_JSON.get() else repr(value)
        text = text.encode("utf-8", "backslashreplace").decode()
    except Exception:  # a number with more digits than Python prints, or an object whose repr raises
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."


def wrong_type(name: str, value: object, wanted: str) -> str:
    """Return e.g. "model 5 is not a string", or "model is missing" for None."""
    return f"{name} is missing" if value is None else f"{name} {shown(value)} is not {wanted}"


def invalid_value(name: str, value: object, expected: str, remedy: str | None = None) -> BadInputError:
    """Return the error for an invalid `value` of `name`."""
    remedy = f"correct {name}" if remedy is None else remedy
    return BadInputError(f"invalid {name} {shown(value)}", expected=expected, remedy=remedy)


def check_int(name: str, value: Any, *, min: int, max: int) -> int:
    """Return `value`, an int or numpy integer, as an int. Raises BadInputError for other types and outside `min` to
    `max`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not min <= value <= max:
        raise invalid_value(name, value, f"a whole number from {min} to {max}")
    return int(value)


def check_float(name: str, value: Any, *, min: float, max: float = math.inf, above: bool = False) -> float:
    """Return `value`, a finite number from `min` to `max`, as a float; with `above` it must exceed `min`.

    Raises BadInputError for other values.
    """
    number = _float_from(value)
    if number is None or not min <= number <= max or (above and number == min):
        low, high = f"above {min:g}" if above else f"from {min:g}", f" and at most {max:g}" if above else f" to {max:g}"
        span = f"{low}{'' if math.isinf(max) else high}"
        raise invalid_value(name, value, f"a number {span}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return `value`, a bool or numpy bool, as a bool. Raises BadInputError for other values."""
    if not isinstance(value, (bool, np.bool_)):
        raise invalid_value(name, value, "true or false")
    return bool(value)


def check_callback(on_step: Any) -> None:
    """Raise BadInputError unless `on_step` is callable or None."""
    if on_step is not None and not callable(on_step):
        raise invalid_value("on_step", on_step, "a function that takes one step, or None", "pass a function")


def check_choice(name: str, value: Any, words: Sequence[str]) -> str:
    """Return `value` if it is one of `words`. Raises BadInputError for other values."""
    if not isinstance(value, str) or value not in words:
        raise invalid_value(name, value, "one of " + ", ".join(words), f"set {name} to one of these")
    return str(value)


def is_list(value: object) -> bool:
    """Return True for a list, tuple, range and array of one dimension."""
    return isinstance(value, (list, tuple, range)) or (isinstance(value, np.ndarray) and value.ndim == 1)


def is_unicode(text: str) -> bool:
    """Return True if `text` can be encoded as UTF-8, i.e. has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _float_from(value: Any) -> float | None:
    """Return `value` as a float if it is a finite number, or None."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        return None
    return number if math.isfinite(number) else None
