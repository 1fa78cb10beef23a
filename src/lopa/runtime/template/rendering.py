"""One rendering of a template: its budget, and its operations on texts with private characters."""

from collections.abc import Callable, ItemsView, KeysView, ValuesView
from datetime import datetime
from typing import Any

from jinja2 import TemplateError

from lopa.runtime.errors import raise_if_from_handler
from lopa.runtime.template.private_characters import is_private, private_where, to_plain, to_private

NODE = 50
"""Units of a budget for one node of a template; the unit is a character that is read or written."""
CALL = 10 * NODE
"""Units for a call, a filter or a test."""
_UNITS, _UNITS_PER_CHARACTER, _VISITS_PER_MESSAGE = 10_000_000, 256, 4
_ON_SPACE = frozenset(("strip", "lstrip", "rstrip", "trim", "split", "splitlines"))
"""Methods and filters that read only white space, unless they are called with other texts."""
_MAX_BITS = 1024


class Rendering:
    """Budget of one rendering, in proportion to the messages, and whether their texts have private characters.

    Every operation is charged in proportion to its characters and elements, those that may multiply its operands
    before it runs. Charges therefore bound memory and processor time without a clock.
    """

    def __init__(self, *, nodes: int, messages: int, characters: int, now: datetime, private: bool = False) -> None:
        self._units = _UNITS + _UNITS_PER_CHARACTER * characters + NODE * _VISITS_PER_MESSAGE * nodes * messages
        self.now = now
        self.private = private

    def charge(self, units: int) -> None:
        """Reduce the budget. Raises TemplateError when it is exceeded."""
        self._units -= units
        if self._units < 0:
            raise TemplateError("the template takes too many operations or creates too much text")

    def weigh(self, value: Any) -> int:
        """Charge for reading all of `value`, and return the units. Repeated references count each time."""
        units = 16
        if isinstance(value, str):
            units += len(value)
        self.charge(units)
        if isinstance(value, dict):
            return units + sum(self.weigh(each) for pair in value.items() for each in pair)
        if isinstance(value, (list, tuple, KeysView, ValuesView, ItemsView)):
            return units + sum(self.weigh(each) for each in value)
        return units

    def plain(self, value: Any) -> Any:
        """Return `value` as a template compares it."""
        return to_plain(value) if self.private and isinstance(value, (str, list, tuple)) else value

    def text(self, value: Any) -> Any:
        """Return what `{{ value }}` writes, or a value that str() turns into it."""
        if isinstance(value, str):
            self.charge(len(value))
            return value
        self.weigh(value)
        return self.whole(str, value) if isinstance(value, (list, tuple, dict)) else value

    def whole(self, function: Callable[..., Any], value: Any, *values: Any, **named: Any) -> Any:
        """Return function(value, ...), as message text if any of `value` is."""
        if not self.private:
            return function(value, *values, **named)
        plain = to_plain(value)
        result = function(plain, *values, **named)
        return result if plain == value else to_private(result)

    def apply(self, name: str, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Return function(*values, **named) of texts, the method or filter `name`. Characters of messages stay private.

        Raises TemplateError if it is unclear which characters of the result come from messages.
        """
        if name in _ON_SPACE and not named and all(isinstance(each, str) and each.isspace() for each in values[1:]):
            return function(*values)  # white space is not private
        plain_values, plain_named = (to_plain(values), to_plain(named)) if self.private else (values, named)
        plain = function(*plain_values, **plain_named)
        if not isinstance(plain, (str, list, tuple)) or (plain_values, plain_named) == (values, named):
            return plain
        found: Any = None
        as_message = (values[0], *map(to_private, values[1:2]), *values[2:])
        # If the first text has both forms, some of their places may spell the right text with other places.
        for given in (values,) if _has_second(values) and _has_second(as_message) else (values, as_message):
            try:
                found = function(*given, **named)
            except Exception as error:  # e.g. no number, or no such text
                raise_if_from_handler(error)
                continue
            if to_plain(found) == plain:
                return found
        if isinstance(plain, str) and isinstance(found, str) and len(found) == len(plain):
            return private_where(found, plain)  # another letter case
        if is_private(values[0]):
            return to_private(plain)
        raise TemplateError("the origin of a text is unclear")


def _has_second(values: tuple[Any, ...]) -> bool:
    """Return True if the first two of `values` are texts, and the first contains the second."""
    text, *others = values[:2]
    return bool(others) and isinstance(text, str) and isinstance(others[0], str) and others[0] in text


def check_number(number: Any) -> Any:
    """Return `number`. Raises TemplateError if it is larger than templates need."""
    if isinstance(number, complex) or (isinstance(number, int) and number.bit_length() > _MAX_BITS):
        raise TemplateError("the template creates too large a number")
    return number
