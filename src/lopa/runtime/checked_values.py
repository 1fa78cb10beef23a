"""Single values from a caller, checked and as plain Python values: numbers, truths, words. Knows no option's meaning.

Callers pass on what they got from somebody else: nothing is computed from a value, nor allocated for it, before it is
checked here, and showing it in an error is bounded too.
"""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from lopa.runtime.errors import BadInputError

MAX_SECONDS = 1e9
"""Thirty years: what the waiting functions of every system take."""
_SHOWN = 80
"""Characters of a value in an error."""


def shown(value: object) -> str:
    """`value` as an error shows it: short and printable, whatever it is."""
    try:
        text = repr(list(islice(value, _SHOWN)) if type(value) in (list, tuple) and len(value) > _SHOWN else value)  # type: ignore[call-overload,arg-type]
    except Exception:  # a number with more digits than Python writes, an object whose repr raises
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def check_int(name: str, value: Any, *, min: int, max: int) -> int:
    """`value`, an int or numpy's, as an int. Raises BadInputError for any other and outside `least` to `most`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not min <= value <= max:
        raise BadInputError(
            f"{name} {shown(value)}", expected=f"a whole number from {min} to {max}", remedy=f"correct {name}"
        )
    return int(value)


def check_float(name: str, value: Any, *, min: float, max: float = math.inf, above: bool = False) -> float:
    """`value`, a number or numpy's, as a float, finite and from `least` to `most`; with `above` larger than `least`.

    Raises BadInputError for every other.
    """
    number = _float_from(value)
    if number is None or not min <= number <= max or (above and number == min):
        low = f"above {min:g}" if above else f"at least {min:g}"
        span = low if math.isinf(max) else f"{low}, at most {max:g}"
        raise BadInputError(f"{name} {shown(value)}", expected=f"a number {span}", remedy=f"correct {name}")
    return number


def check_bool(name: str, value: Any) -> bool:
    """`value`, a bool or numpy's, as a bool. Raises BadInputError for every other."""
    if not isinstance(value, (bool, np.bool_)):
        raise BadInputError(f"{name} {shown(value)}", expected="true or false", remedy=f"correct {name}")
    return bool(value)


def check_callback(on_step: Any) -> None:
    """Raise BadInputError for an `on_step` that cannot be called."""
    if on_step is not None and not callable(on_step):
        raise BadInputError(
            f"on_step {shown(on_step)}", expected="a function of one step, or None", remedy="correct on_step"
        )


def check_choice(name: str, value: Any, words: Sequence[str]) -> str:
    """`value` if it is one of `words`. Raises BadInputError for every other."""
    if not isinstance(value, str) or value not in words:
        raise BadInputError(f"{name} {shown(value)}", expected="one of " + ", ".join(words), remedy="choose one")
    return str(value)


def is_unicode(text: str) -> bool:
    """Whether `text` can be written as UTF-8: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _float_from(value: Any) -> float | None:
    """The finite number that `value` is, or None."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        return None
    return number if math.isfinite(number) else None
