"""The filters of lists and mappings that a chat template may use, and those of any value.

Each takes the run, the value and the arguments, and does what jinja's does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import Undefined

from lopa.runtime.template.evaluator import Evaluator
from lopa.runtime.template.methods import joined_text, key_of, text_from
from lopa.runtime.template.text import part_of


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


def _join(run: Evaluator, value: Any, d: Any = "", attribute: Any = None) -> str:
    items = run.items(value)
    if attribute is not None:
        items = [_attribute_of(run, item, attribute) for item in items]
    return joined_text(run.budget, items, text_from(run.budget, d))


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


def _attribute_of(run: Evaluator, item: Any, path: Any) -> Any:
    """item.a.b for "a.b"; numbers are places."""
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
    "reject": _chosen(by_attribute=False, keep=False),
    "rejectattr": _chosen(by_attribute=True, keep=False),
    "reverse": _reverse,
    "select": _chosen(by_attribute=False, keep=True),
    "selectattr": _chosen(by_attribute=True, keep=True),
    "sort": _sort,
    "sum": _sum,
    "unique": _unique,
}
