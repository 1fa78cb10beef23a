"""What a chat template may use up: operations, characters, and the size of its values. Knows no syntax and no message.

Every operation is charged before it is done, characters and elements in proportion, so that what bounds the charges
bounds memory and processor time too, without a clock.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jinja2 import TemplateError

from lopa.runtime.template.text import MessageText

_OPERATIONS, _OPERATIONS_PER_MESSAGE, _OPERATIONS_PER_CHARACTER = 200_000, 1_000, 1
_CHARACTERS, _CHARACTERS_PER_CHARACTER = 8_000_000, 64
"""Also those that are only looked at."""
_LARGEST_BITS = 64
_DEEPEST_VALUE = 50


class Weight(NamedTuple):
    """How large a value is, all that it holds included."""

    elements: int
    characters: int
    depth: int
    from_message: bool


class Budget:
    """Of one rendering; in proportion to what the messages hold."""

    def __init__(self, *, messages: int, characters: int) -> None:
        self._operations = _OPERATIONS + _OPERATIONS_PER_MESSAGE * messages + _OPERATIONS_PER_CHARACTER * characters
        self._characters = _CHARACTERS + _CHARACTERS_PER_CHARACTER * characters

    def operations(self, count: int = 1) -> None:
        """Charge steps, or elements of a list. Raises TemplateError when there are too many."""
        self._operations -= count
        if self._operations < 0:
            raise TemplateError("it takes too many operations")

    def characters(self, count: int) -> None:
        """Charge characters. Raises TemplateError when there are too many."""
        self._characters -= count
        if self._characters < 0:
            raise TemplateError("it makes too much text")

    def weigh(self, value: Any, depth: int = 0) -> Weight:
        """Charge for looking at all of `value`. A value may hold another many times: each counts."""
        self.operations()
        if depth > _DEEPEST_VALUE:
            raise TemplateError("it makes values that are nested too deeply")
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


def bounded(number: Any) -> Any:
    """`number` unless it is larger than any that a template needs. Raises TemplateError then."""
    if isinstance(number, complex) or (isinstance(number, int) and number.bit_length() > _LARGEST_BITS):
        raise TemplateError("it makes too large a number")
    return number
