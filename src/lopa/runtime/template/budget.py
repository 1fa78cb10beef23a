"""Budget of a chat template: operations, characters and size of its values. This module does not depend on syntax or
messages.

Every operation is charged before it runs, in proportion to its characters and elements. Bounded charges therefore bound
memory and processor time without a clock.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jinja2 import TemplateError

from lopa.runtime.template.text import MessageText

_OPERATIONS, _OPERATIONS_PER_MESSAGE, _OPERATIONS_PER_CHARACTER = 200_000, 1_000, 1
_CHARACTERS, _CHARACTERS_PER_CHARACTER = 8_000_000, 64
"""Characters that a template may create or read, and additional ones per character of the messages."""
_MAX_BITS = 64
_MAX_DEPTH = 50


class Weight(NamedTuple):
    """Size of a value with everything that it contains."""

    elements: int
    characters: int
    depth: int
    from_message: bool


class Budget:
    """Budget of one rendering, in proportion to the size of the messages."""

    def __init__(self, *, messages: int, characters: int) -> None:
        self._operations = _OPERATIONS + _OPERATIONS_PER_MESSAGE * messages + _OPERATIONS_PER_CHARACTER * characters
        self._characters = _CHARACTERS + _CHARACTERS_PER_CHARACTER * characters

    def operations(self, count: int = 1) -> None:
        """Charge steps or list elements. Raises TemplateError when the budget is exceeded."""
        self._operations -= count
        if self._operations < 0:
            raise TemplateError("the template takes too many operations")

    def characters(self, count: int) -> None:
        """Charge characters. Raises TemplateError when the budget is exceeded."""
        self._characters -= count
        if self._characters < 0:
            raise TemplateError("the template creates too much text")

    def weigh(self, value: Any, depth: int = 0) -> Weight:
        """Charge for reading all of `value` and return its size. Repeated references count each time."""
        self.operations()
        if depth > _MAX_DEPTH:
            raise TemplateError("the template creates too deeply nested values")
        if isinstance(value, str):
            self.characters(len(value))
            return Weight(1, len(value), 0, isinstance(value, MessageText))
        if isinstance(value, Mapping):
            inner = [self.weigh(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, (list, tuple)):
            inner = [self.weigh(each, depth + 1) for each in value]
        else:
            return Weight(1, 32, 0, False)
        return Weight(
            1 + sum(each.elements for each in inner),
            sum(each.characters for each in inner),
            1 + max((each.depth for each in inner), default=0),
            any(each.from_message for each in inner),
        )


def check_number(number: Any) -> Any:
    """Return `number`. Raises TemplateError if it is larger than templates need."""
    if isinstance(number, complex) or (isinstance(number, int) and number.bit_length() > _MAX_BITS):
        raise TemplateError("the template creates too large a number")
    return number
