"""Operations of chat templates on values, within a budget. This module does not depend on syntax.

Templates cannot reach Python objects. Attributes are keys of mappings, names of a namespace or loop, and the methods in
METHODS.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, Undefined
from jinja2.exceptions import SecurityError, UndefinedError

from lopa.runtime.template.budget import Budget, check_number
from lopa.runtime.template.methods import METHODS, check_key, join_text, split_characters
from lopa.runtime.template.sequence_filters import SEQUENCE_FILTERS
from lopa.runtime.template.text import add_marks, get_marks, slice_text
from lopa.runtime.template.text_filters import TEXT_FILTERS
from lopa.runtime.template.value_tests import TESTS
from lopa.runtime.template.values import Function, Loop, Namespace

_FILTERS = {**TEXT_FILTERS, **SEQUENCE_FILTERS}
_PLAIN = (str, int, float, list, tuple, dict)


class Operations:
    """Operations of one rendering. Each charges its budget first."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget

    def apply_filter(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return `value` after the filter `name`."""
        if name not in _FILTERS:
            raise TemplateError(f"No filter named {name!r}. Available filters: {', '.join(sorted(_FILTERS))}.")
        self.budget.operations()
        return _FILTERS[name](self, value, *values, **named)

    def apply_test(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Return whether `value` passes the test `name`."""
        if name not in TESTS:
            raise TemplateError(f"No test named {name!r}.")
        self.budget.operations()
        return bool(TESTS[name](self, value, *values, **named))

    def items(self, value: Any) -> list[Any]:
        """Return the items that a `for` over `value` visits."""
        if isinstance(value, Undefined):
            return []
        if isinstance(value, str):
            return split_characters(self.budget, value)
        if isinstance(value, (list, tuple, Mapping, range)):
            self.budget.operations(len(value))
            return list(value)
        raise TypeError(f"{type(value).__name__!r} object is not iterable")

    def attribute(self, value: Any, name: str) -> Any:
        """Return value.name; a method takes precedence over a key."""
        if isinstance(value, Undefined):
            raise_undefined(value)
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
                f"Available methods: {methods or 'none'}."
            )
        if isinstance(value, Mapping) and name in value:
            return value[name]
        return Undefined(obj=value, name=name)

    def item(self, value: Any, key: Any) -> Any:
        """Return value[key], or an undefined value."""
        if isinstance(value, Undefined):
            raise_undefined(value)
        if isinstance(value, Mapping):
            if check_key(key) in value:
                return value[key]
        elif isinstance(value, (str, list, tuple, range)) and isinstance(key, int):
            if not -len(value) <= key < len(value):
                return Undefined(obj=value, name=key)  # type: ignore[arg-type]
            index = key % len(value)
            return slice_text(value, slice(index, index + 1)) if isinstance(value, str) else value[index]
        return self.attribute(value, key) if isinstance(key, str) else Undefined(obj=value, name=key)

    def add(self, left: Any, right: Any) -> Any:
        """Return left + right."""
        if isinstance(left, str) and isinstance(right, str):
            return join_text(self.budget, (left, right))
        for kind in (list, tuple):
            if isinstance(left, kind) and isinstance(right, kind):
                self.budget.operations(len(left) + len(right))
                return left + right  # type: ignore[operator]
        return calculate(operator.add, left, right)

    def take_slice(self, value: Any, which: slice) -> Any:
        """Return value[which]."""
        if isinstance(value, Undefined):
            raise_undefined(value)
        if isinstance(value, str):
            self.budget.characters(len(value))
            return slice_text(value, which)
        if not isinstance(value, (list, tuple, range)):
            raise TypeError(f"{type(value).__name__!r} object is not subscriptable")
        self.budget.operations(len(value))
        return value[which]

    def repeat(self, left: Any, right: Any) -> Any:
        """Return left * right for a text or list and a number."""
        value, count = (right, left) if isinstance(left, int) else (left, right)
        if not isinstance(count, int):
            raise TypeError(f"can't multiply sequence by {type(count).__name__!r}")
        count = max(0, count)
        if isinstance(value, str):
            self.budget.characters(len(value) * count)
            return add_marks(str(value) * count, get_marks(value) * count)
        self.budget.operations(len(value) * count)
        return value * count


def calculate(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Return the result of a numeric operation. Raises TypeError for other operands."""
    for each in (left, right):
        if isinstance(each, Undefined):
            raise_undefined(each)
        if not isinstance(each, (int, float)):
            kinds = f"{type(left).__name__!r} and {type(right).__name__!r}"
            raise TypeError(f"unsupported operand type(s) for {operation.__name__}: {kinds}")
    return check_number(operation(left, right))


def raise_undefined(value: Undefined) -> None:
    """Raise jinja's error for the use of an undefined value."""
    raise UndefinedError(value._undefined_message)
