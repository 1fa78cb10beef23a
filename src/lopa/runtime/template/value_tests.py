"""Tests (`is ..`) of chat templates: the tests of jinja that checkpoints' templates use.

Each takes the run, the value and the arguments, and behaves as in jinja.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Undefined

from lopa.runtime.template.evaluator import Evaluator
from lopa.runtime.template.values import Function, Macro


def _comparison(name: str) -> Callable[..., Any]:
    def run(run: Evaluator, value: Any, other: Any) -> Any:
        for each in (value, other):
            run.budget.weigh(each)
        return _COMPARISONS[name](value, other)

    return run


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": lambda value, other: value == other,
    "ne": lambda value, other: value != other,
    "lt": lambda value, other: value < other,
    "le": lambda value, other: value <= other,
    "gt": lambda value, other: value > other,
    "ge": lambda value, other: value >= other,
    "in": lambda value, other: value in other,
}
_ALIASES = {
    **{"==": "eq", "equalto": "eq", "!=": "ne", "<": "lt", "lessthan": "lt", "<=": "le"},
    **{">": "gt", "greaterthan": "gt", ">=": "ge"},
}

TESTS: Mapping[str, Callable[..., Any]] = {
    **{name: _comparison(name) for name in _COMPARISONS},
    **{other: _comparison(name) for other, name in _ALIASES.items()},
    "boolean": lambda _run, value: isinstance(value, bool),
    "callable": lambda _run, value: isinstance(value, (Function, Macro)),
    "defined": lambda _run, value: not isinstance(value, Undefined),
    "divisibleby": lambda _run, value, number: value % number == 0 if _is_number(value) else False,
    "even": lambda _run, value: value % 2 == 0 if _is_number(value) else False,
    "false": lambda _run, value: value is False,
    "float": lambda _run, value: isinstance(value, float),
    "integer": lambda _run, value: isinstance(value, int) and not isinstance(value, bool),
    "iterable": lambda _run, value: isinstance(value, (str, list, tuple, dict, range, Undefined)),
    "lower": lambda _run, value: str(value).islower() if isinstance(value, str) else False,
    "mapping": lambda _run, value: isinstance(value, Mapping),
    "none": lambda _run, value: value is None,
    "number": lambda _run, value: _is_number(value),
    "odd": lambda _run, value: value % 2 == 1 if _is_number(value) else False,
    "sameas": lambda _run, value, other: value is other,
    "sequence": lambda _run, value: isinstance(value, (str, list, tuple, dict, range, Undefined)),
    "string": lambda _run, value: isinstance(value, str),
    "true": lambda _run, value: value is True,
    "undefined": lambda _run, value: isinstance(value, Undefined),
    "upper": lambda _run, value: str(value).isupper() if isinstance(value, str) else False,
}
