"""What a chat template can do with values, within a budget. Knows no syntax.

There is nothing of Python to reach: attributes are keys of mappings, names of a namespace, of a loop, and the methods
of METHODS.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, Undefined
from jinja2.exceptions import SecurityError, UndefinedError

from lopa.runtime.template.budget import Budget, bounded
from lopa.runtime.template.methods import METHODS, characters_of, joined_text, key_of
from lopa.runtime.template.sequence_filters import SEQUENCE_FILTERS
from lopa.runtime.template.text import marked, marks_of, part_of
from lopa.runtime.template.text_filters import TEXT_FILTERS
from lopa.runtime.template.value_tests import TESTS
from lopa.runtime.template.values import Function, Loop, Namespace

_FILTERS = {**TEXT_FILTERS, **SEQUENCE_FILTERS}
_PLAIN = (str, int, float, list, tuple, dict)


class Operations:
    """Those of one rendering, which charge its budget first."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def filtered(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """`value` through the filter `name`."""
        if name not in _FILTERS:
            raise TemplateError(f"No filter named {name!r}. There are: {', '.join(sorted(_FILTERS))}.")
        self.budget.operations()
        return _FILTERS[name](self, value, *values, **named)

    def tested(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether `value` passes the test `name`."""
        if name not in TESTS:
            raise TemplateError(f"No test named {name!r}.")
        self.budget.operations()
        return bool(TESTS[name](self, value, *values, **named))

    def items(self, value: Any) -> list[Any]:
        """What a for over `value` goes through."""
        if isinstance(value, Undefined):
            return []
        if isinstance(value, str):
            return characters_of(self.budget, value)
        if isinstance(value, (list, tuple, Mapping, range)):
            self.budget.operations(len(value))
            return list(value)
        raise TypeError(f"{type(value).__name__!r} object is not iterable")

    def attribute(self, value: Any, name: str) -> Any:
        """value.name, which prefers a method to a key."""
        if isinstance(value, Undefined):
            fail(value)
        if isinstance(value, Namespace):
            return value.values[name] if name in value.values else Undefined(obj=value, name=name)
        if isinstance(value, Loop):
            return value.attribute(name)
        kind = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
        method = METHODS.get(kind, {}).get(name) if kind is not None else None
        if method is not None:
            return Function(name, lambda *values, **named: method(self.budget, value, *values, **named))
        if name.startswith("__") or (kind is not None and hasattr(kind, name)):
            methods = ", ".join(METHODS.get(kind, ())) if kind is not None else ""
            raise SecurityError(
                f"access to attribute {name!r} of {type(value).__name__!r} object is unsafe. "
                f"Its methods here: {methods or 'none'}."
            )
        if isinstance(value, Mapping) and name in value:
            return value[name]
        return Undefined(obj=value, name=name)

    def item(self, value: Any, key: Any) -> Any:
        """value[key], undefined where there is none."""
        if isinstance(value, Undefined):
            fail(value)
        if isinstance(value, Mapping):
            if key_of(key) in value:
                return value[key]
        elif isinstance(value, (str, list, tuple, range)) and isinstance(key, int):
            if not -len(value) <= key < len(value):
                return Undefined(obj=value, name=key)  # type: ignore[arg-type]
            place = key % len(value)
            return part_of(value, slice(place, place + 1)) if isinstance(value, str) else value[place]
        return self.attribute(value, key) if isinstance(key, str) else Undefined(obj=value, name=key)

    def added(self, left: Any, right: Any) -> Any:
        """Left + right."""
        if isinstance(left, str) and isinstance(right, str):
            return joined_text(self.budget, (left, right))
        for kind in (list, tuple):
            if isinstance(left, kind) and isinstance(right, kind):
                self.budget.operations(len(left) + len(right))
                return left + right  # type: ignore[operator]
        return of_numbers(operator.add, left, right)

    def part(self, value: Any, which: slice) -> Any:
        """value[which]"""
        if isinstance(value, Undefined):
            fail(value)
        if isinstance(value, str):
            self.budget.characters(len(value))
            return part_of(value, which)
        if not isinstance(value, (list, tuple, range)):
            raise TypeError(f"{type(value).__name__!r} object is not subscriptable")
        self.budget.operations(len(value))
        return value[which]

    def repeated(self, left: Any, right: Any) -> Any:
        """Left * right, where one is a text or a list and the other says how often."""
        value, count = (right, left) if isinstance(left, int) else (left, right)
        if not isinstance(count, int):
            raise TypeError(f"can't multiply sequence by {type(count).__name__!r}")
        count = max(0, count)
        if isinstance(value, str):
            self.budget.characters(len(value) * count)
            return marked(str(value) * count, marks_of(value) * count)
        self.budget.operations(len(value) * count)
        return value * count


def of_numbers(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """The operation, if it is one of numbers."""
    for each in (left, right):
        if isinstance(each, Undefined):
            fail(each)
        if not isinstance(each, (int, float)):
            kinds = f"{type(left).__name__!r} and {type(right).__name__!r}"
            raise TypeError(f"unsupported operand type(s) for {operation.__name__}: {kinds}")
    return bounded(operation(left, right))


def fail(value: Undefined) -> None:
    """Raise what jinja says of the use of an undefined value."""
    raise UndefinedError(value._undefined_message)
