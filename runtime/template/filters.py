"""The filters, tests and functions that a chat template may use: those of jinja that templates of checkpoints use.

Each takes the run (lopa.runtime.template.run), the value and the arguments, and does what jinja's does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from jinja2 import TemplateError, Undefined

from lopa.runtime.template.budget import Budget, bounded
from lopa.runtime.template.methods import (
    METHODS,
    joined_text,
    json_text,
    key_of,
    percent_formatted,
    replaced_text,
    text_from,
)
from lopa.runtime.template.text import joined, part_of, recased
from lopa.runtime.template.values import Function, Macro, Namespace

_MOST_RANGE = 100_000
_MOST_LAYOUT = 100
_MOST_INDENT = 64


class Evaluator(Protocol):
    """What a filter asks of the run that it is part of (lopa.runtime.template.run)."""

    @property
    def budget(self) -> Budget:
        """Of this rendering."""

    def filtered(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """`value` through the filter `name`."""

    def tested(self, name: str, value: Any, values: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether `value` passes the test `name`."""

    def items(self, value: Any) -> list[Any]:
        """What a for over `value` goes through."""

    def item(self, value: Any, key: Any) -> Any:
        """value[key], undefined where there is none."""

    def added(self, left: Any, right: Any) -> Any:
        """left + right."""


def template_functions(budget: Budget) -> dict[str, Any]:
    """What a template can call without a value: range, dict, namespace, raise_exception, strftime_now."""

    def new_dict(*values: Any, **named: Any) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for given in (*values, named):
            pairs = list(given.items() if isinstance(given, Mapping) else given)
            budget.operations(len(pairs))
            made.update({key_of(key): value for key, value in pairs})
        return made

    functions: dict[str, Callable[..., Any]] = {
        "range": _range,
        "dict": new_dict,
        "namespace": lambda *values, **named: Namespace(new_dict(*values, **named)),
        "raise_exception": _raise_exception,
        "strftime_now": _time_now,
    }
    return {name: Function(name, run) for name, run in functions.items()}


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > _MOST_RANGE:
        raise OverflowError(f"Range too big. The sandbox blocks ranges larger than MAX_RANGE ({_MOST_RANGE}).")
    return found


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message)[:1000])


def _time_now(layout: str) -> str:
    """The local time, as strftime lays it out."""
    if not isinstance(layout, str) or len(layout) > _MOST_LAYOUT or any(digit in layout for digit in "0123456789"):
        raise TemplateError(f"strftime_now takes a layout of at most {_MOST_LAYOUT} characters and no digits")
    return datetime.now().strftime(layout)


# Filters of texts


def _text_method(name: str) -> Callable[..., Any]:
    method = METHODS[str][name]

    def run(run: Evaluator, value: Any, *values: Any, **named: Any) -> Any:
        return method(run.budget, text_from(run.budget, value), *values, **named)

    return run


def _title(run: Evaluator, value: Any) -> str:
    text = text_from(run.budget, value)
    run.budget.operations(len(text))
    letters, starts = [], True
    for letter in str(text):
        letters.append(letter.upper() if starts else letter.lower())
        starts = letter.isspace() or letter in "-({[<"
    return recased(text, "".join(letters))


def _string(run: Evaluator, value: Any) -> str:
    return text_from(run.budget, value)


def _replace(run: Evaluator, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, before, after = (text_from(run.budget, each) for each in (value, old, new))
    return replaced_text(run.budget, text, before, after, -1 if count is None else count)


def _indent(run: Evaluator, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = text_from(run.budget, value)
    if not (isinstance(width, str) or (isinstance(width, int) and width >= 0)) or (
        (len(width) if isinstance(width, str) else width) > _MOST_INDENT
    ):
        raise TemplateError(f"indent takes a width of at most {_MOST_INDENT}")
    indention = width if isinstance(width, str) else " " * width
    lines = METHODS[str]["splitlines"](run.budget, joined([text, "\n"]))
    run.budget.characters(2 * len(text) + len(lines) * (len(indention) + 1))
    parts: list[str] = [indention] if first else []
    for number, line in enumerate(lines):
        if number:
            parts.append("\n" + indention if line or blank else "\n")
        parts.append(line)
    return joined(parts)


def _join(run: Evaluator, value: Any, d: Any = "", attribute: Any = None) -> str:
    items = run.items(value)
    if attribute is not None:
        items = [_attribute_of(run, item, attribute) for item in items]
    return joined_text(run.budget, items, text_from(run.budget, d))


def _format(run: Evaluator, value: Any, *values: Any, **named: Any) -> str:
    return percent_formatted(run.budget, text_from(run.budget, value), named or tuple(values))


def _json(run: Evaluator, value: Any, *values: Any, **named: Any) -> str:
    return json_text(run.budget, value, *values, **named)


# Filters of numbers


def _int(run: Evaluator, value: Any, default: Any = 0, base: int = 10) -> Any:
    if isinstance(value, str):
        run.budget.characters(len(value))
    try:
        return bounded(int(value, base) if isinstance(value, str) and base != 10 else int(value))
    except (TypeError, ValueError, OverflowError):
        try:
            return bounded(int(float(value)))
        except (TypeError, ValueError, OverflowError):
            return default


def _float(run: Evaluator, value: Any, default: Any = 0.0) -> Any:
    if isinstance(value, str):
        run.budget.characters(len(value))
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _round(_run: Evaluator, value: Any, precision: int = 0, method: str = "common") -> Any:
    if not isinstance(precision, int) or abs(precision) > 20:
        raise TemplateError("round takes a precision of at most 20")
    if method == "common":
        return round(value, precision)
    if method not in ("ceil", "floor"):
        raise TemplateError("method must be common, ceil or floor")
    rounded = math.ceil if method == "ceil" else math.floor
    return rounded(value * 10**precision) / 10**precision


def _abs(_run: Evaluator, value: Any) -> Any:
    return abs(value)


# Filters of lists and mappings


def _length(_run: Evaluator, value: Any) -> int:
    return len(value)


def _first(run: Evaluator, value: Any) -> Any:
    return run.item(value, 0) if isinstance(value, str) else next(iter(run.items(value)), Undefined("no first item"))


def _last(run: Evaluator, value: Any) -> Any:
    return (
        run.item(value, -1) if isinstance(value, str) else next(reversed(run.items(value)), Undefined("no last item"))
    )


def _list(run: Evaluator, value: Any) -> list[Any]:
    return run.items(value)


def _pairs(run: Evaluator, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Undefined):
        return []
    if not isinstance(value, Mapping):
        raise TypeError("Can only get item pairs from a mapping.")
    run.budget.operations(len(value))
    return list(value.items())


def _reverse(run: Evaluator, value: Any) -> Any:
    if isinstance(value, str):
        run.budget.characters(len(value))
        return part_of(value, slice(None, None, -1))
    return run.items(value)[::-1]


def _default(_run: Evaluator, value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _sum(run: Evaluator, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for item in run.items(value):
        total = run.added(total, item if attribute is None else _attribute_of(run, item, attribute))
    return total


def _sort(
    run: Evaluator, value: Any, reverse: bool = False, case_sensitive: bool = False, attribute: Any = None
) -> list[Any]:
    items = run.items(value)
    return sorted(items, key=_ordering(run, items, case_sensitive, attribute), reverse=bool(reverse))


def _dictsort(
    run: Evaluator, value: Any, case_sensitive: bool = False, by: str = "key", reverse: bool = False
) -> list[tuple[Any, Any]]:
    pairs = _pairs(run, value)
    place = {"key": 0, "value": 1}[by]
    return sorted(pairs, key=_ordering(run, pairs, case_sensitive, place), reverse=bool(reverse))


def _unique(run: Evaluator, value: Any, case_sensitive: bool = False, attribute: Any = None) -> list[Any]:
    items = run.items(value)
    key = _ordering(run, items, case_sensitive, attribute)
    return list({key(item): item for item in reversed(items)}.values())[::-1]


def _max(run: Evaluator, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
    items = run.items(value)
    if not items:
        return Undefined("No aggregated item, sequence was empty.")
    return max(items, key=_ordering(run, items, case_sensitive, attribute))


def _min(run: Evaluator, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Any:
    items = run.items(value)
    if not items:
        return Undefined("No aggregated item, sequence was empty.")
    return min(items, key=_ordering(run, items, case_sensitive, attribute))


def _ordering(run: Evaluator, items: Sequence[Any], case_sensitive: bool, attribute: Any) -> Callable[[Any], Any]:
    """What to order `items` by: single values, not such as hold others. The comparing is charged here."""
    compared = len(items).bit_length() + 1
    run.budget.operations(compared * len(items))

    def key(item: Any) -> Any:
        found = item if attribute is None else _attribute_of(run, item, attribute)
        if isinstance(found, str):
            run.budget.characters(compared * len(found))
            return str(found) if case_sensitive else found.lower()
        return key_of(found)

    return key


def _map(run: Evaluator, value: Any, *values: Any, **named: Any) -> list[Any]:
    items = run.items(value)
    if values:
        return [run.filtered(text_from(run.budget, values[0]), item, values[1:], named) for item in items]
    default = named.get("default")
    found = [_attribute_of(run, item, named["attribute"]) for item in items]
    return [default if isinstance(each, Undefined) and default is not None else each for each in found]


def _chosen(*, by_attribute: bool, keep: bool) -> Callable[..., list[Any]]:
    def run(run: Evaluator, value: Any, *values: Any) -> list[Any]:
        attribute, values = (values[0], values[1:]) if by_attribute else (None, values)

        def passes(item: Any) -> bool:
            found = item if attribute is None else _attribute_of(run, item, attribute)
            return run.tested(text_from(run.budget, values[0]), found, values[1:], {}) if values else bool(found)

        return [item for item in run.items(value) if passes(item) == keep]

    return run


def _batch(run: Evaluator, value: Any, linecount: int) -> list[list[Any]]:
    items = run.items(value)
    if not isinstance(linecount, int) or linecount < 1:
        raise TemplateError("batch takes a number from 1")
    return [items[start : start + linecount] for start in range(0, len(items), linecount)]


def _attribute_of(run: Evaluator, item: Any, path: Any) -> Any:
    """item.a.b for "a.b"; numbers are places."""
    for name in path.split(".") if isinstance(path, str) else [path]:
        run.budget.operations()
        item = run.item(item, int(name) if isinstance(name, str) and name.isdecimal() else name)
    return item


FILTERS: Mapping[str, Callable[..., Any]] = {
    "abs": _abs,
    "batch": _batch,
    "capitalize": _text_method("capitalize"),
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _first,
    "float": _float,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "items": _pairs,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "lower": _text_method("lower"),
    "map": _map,
    "max": _max,
    "min": _min,
    "reject": _chosen(by_attribute=False, keep=False),
    "rejectattr": _chosen(by_attribute=True, keep=False),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": _string,
    "select": _chosen(by_attribute=False, keep=True),
    "selectattr": _chosen(by_attribute=True, keep=True),
    "sort": _sort,
    "string": _string,
    "sum": _sum,
    "title": _title,
    "tojson": _json,
    "trim": _text_method("strip"),
    "unique": _unique,
    "upper": _text_method("upper"),
}


# Tests


def _compared(name: str) -> Callable[..., Any]:
    def run(run: Evaluator, value: Any, other: Any) -> Any:
        for each in (value, other):
            run.budget.weigh(each)
        return _COMPARED[name](value, other)

    return run


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": lambda value, other: value == other,
    "ne": lambda value, other: value != other,
    "lt": lambda value, other: value < other,
    "le": lambda value, other: value <= other,
    "gt": lambda value, other: value > other,
    "ge": lambda value, other: value >= other,
    "in": lambda value, other: value in other,
}
_OTHER_NAMES = {
    **{"==": "eq", "equalto": "eq", "!=": "ne", "<": "lt", "lessthan": "lt", "<=": "le"},
    **{">": "gt", "greaterthan": "gt", ">=": "ge"},
}

TESTS: Mapping[str, Callable[..., Any]] = {
    **{name: _compared(name) for name in _COMPARED},
    **{other: _compared(name) for other, name in _OTHER_NAMES.items()},
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
