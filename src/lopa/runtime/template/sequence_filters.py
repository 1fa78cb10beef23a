"""Filters of lists, mappings and any values in chat templates.

Each takes the run, the value and the arguments, and behaves as in jinja.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import Undefined

from lopa.runtime.template.evaluator import Evaluator
from lopa.runtime.template.methods import check_key, join_text, to_text
from lopa.runtime.template.text import slice_text


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
        return slice_text(value, slice(None, None, -1))
    return run.items(value)[::-1]


def _default(_run: Evaluator, value: Any, default_value: Any = "", boolean: bool = False) -> Any:
    return default_value if isinstance(value, Undefined) or (boolean and not value) else value


def _join(run: Evaluator, value: Any, d: Any = "", attribute: Any = None) -> str:
    items = run.items(value)
    if attribute is not None:
        items = [_get_attribute(run, item, attribute) for item in items]
    return join_text(run.budget, items, to_text(run.budget, d))


def _sum(run: Evaluator, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for item in run.items(value):
        total = run.add(total, item if attribute is None else _get_attribute(run, item, attribute))
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
    index = {"key": 0, "value": 1}[by]
    return sorted(pairs, key=_ordering(run, pairs, case_sensitive, index), reverse=bool(reverse))


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
    """Return the sort key of `items`, which must be scalars. The comparisons are charged here."""
    compared = len(items).bit_length() + 1
    run.budget.operations(compared * len(items))

    def key(item: Any) -> Any:
        found = item if attribute is None else _get_attribute(run, item, attribute)
        if isinstance(found, str):
            run.budget.characters(compared * len(found))
            return str(found) if case_sensitive else found.lower()
        return check_key(found)

    return key


def _map(run: Evaluator, value: Any, *values: Any, **named: Any) -> list[Any]:
    items = run.items(value)
    if values:
        return [run.apply_filter(to_text(run.budget, values[0]), item, values[1:], named) for item in items]
    default = named.get("default")
    found = [_get_attribute(run, item, named["attribute"]) for item in items]
    return [default if isinstance(each, Undefined) and default is not None else each for each in found]


def _selection(*, by_attribute: bool, keep: bool) -> Callable[..., list[Any]]:
    def run(run: Evaluator, value: Any, *values: Any) -> list[Any]:
        attribute, values = (values[0], values[1:]) if by_attribute else (None, values)

        def passes(item: Any) -> bool:
            found = item if attribute is None else _get_attribute(run, item, attribute)
            return run.apply_test(to_text(run.budget, values[0]), found, values[1:], {}) if values else bool(found)

        return [item for item in run.items(value) if passes(item) == keep]

    return run


def _get_attribute(run: Evaluator, item: Any, path: Any) -> Any:
    """Return item.a.b for the path "a.b"; numbers are indexes."""
    for name in path.split(".") if isinstance(path, str) else [path]:
        run.budget.operations()
        item = run.item(item, int(name) if isinstance(name, str) and name.isdecimal() else name)
    return item


SEQUENCE_FILTERS: Mapping[str, Callable[..., Any]] = {
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _first,
    "items": _pairs,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "map": _map,
    "max": _max,
    "min": _min,
    "reject": _selection(by_attribute=False, keep=False),
    "rejectattr": _selection(by_attribute=True, keep=False),
    "reverse": _reverse,
    "select": _selection(by_attribute=False, keep=True),
    "selectattr": _selection(by_attribute=True, keep=True),
    "sort": _sort,
    "sum": _sum,
    "unique": _unique,
}
