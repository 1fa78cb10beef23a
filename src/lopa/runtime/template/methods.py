"""Methods of texts, lists and mappings in chat templates. This module does not depend on syntax.

Each function takes the budget, the value and the arguments of the call, and behaves as in Python.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, Undefined

from lopa.runtime.template.budget import Budget
from lopa.runtime.template.text import (
    add_marks,
    change_case,
    get_marks,
    join_marked,
    mark_message,
    replace_marked,
    slice_text,
    split_lines,
    split_marked,
    strip_marked,
)

Method = Callable[..., Any]

_MAX_INDENT = 16
_CHARACTERS_PER_PIECE = 20
"""Assumed length of a line or word, which bounds their number before they are created."""
_MAX_SEARCHED = 100
"""Maximum characters to search from the right or to strip, which Python does in time proportional to their number."""
_CASES = ("upper", "lower", "title", "capitalize")
_QUERIES = (
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"),
)


def to_text(budget: Budget, value: Any) -> str:
    """Return the text that `{{ value }}` writes."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float, Undefined)):
        return str(value)
    if isinstance(value, (list, tuple, Mapping)):
        weight = budget.weigh(value)
        return mark_message(str(value)) if weight.from_message else str(value)
    return f"<{type(value).__name__.lower()}>"


def join_text(budget: Budget, parts: Sequence[Any], separator: str = "") -> str:
    """Return the parts as one text."""
    texts = [to_text(budget, part) for part in parts]
    budget.characters(sum(map(len, texts)) + len(separator) * len(texts))
    return join_marked(texts, separator)


def replace_text(budget: Budget, text: str, old: str, new: str, count: int = -1) -> str:
    """Return `text` with `new` for `old`. The size is charged before the text is created."""
    for each in (old, new):
        _check_text(each)
    budget.characters(len(text) + len(old))
    found = text.count(old)
    budget.operations(found)
    budget.characters(max(0, found * len(new)))
    return replace_marked(text, old, new, _check_integer(count))


def to_json(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON, without jinja's HTML escapes."""
    if indent is not None and not 0 <= _check_integer(indent) <= _MAX_INDENT:
        raise TemplateError(f"tojson with indent {indent}; at most {_MAX_INDENT} is allowed")
    if separators is not None and (
        len(separators) != 2 or any(len(_check_text(each)) > _MAX_INDENT for each in separators)
    ):
        raise TemplateError(f"tojson takes two separators of at most {_MAX_INDENT} characters")
    weight = budget.weigh(value)
    around = 2 * _MAX_INDENT + (indent or 0) * (weight.depth + 1)
    budget.characters(6 * weight.characters + around * weight.elements)  # an escaped character takes six characters
    text = json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=None if separators is None else (separators[0], separators[1]),
        sort_keys=bool(sort_keys),
    )
    return mark_message(text) if weight.from_message else text


def _case(name: str) -> Method:
    def run(budget: Budget, text: str) -> str:
        budget.characters(3 * len(text))
        return change_case(text, getattr(str, name)(text))

    return run


def _query(name: str) -> Method:
    def run(budget: Budget, text: str, *arguments: Any) -> Any:
        budget.characters(len(text))
        for each in arguments:
            budget.weigh(each)
        if name in ("rfind", "rindex"):
            _check_search_text(arguments[0])
        return getattr(str, name)(text, *arguments)

    return run


def _strip(left: bool, right: bool) -> Method:
    def run(budget: Budget, text: str, characters: str | None = None) -> str:
        budget.characters(2 * len(text))
        return strip_marked(
            text, None if characters is None else _check_search_text(characters), left=left, right=right
        )

    return run


def _split(from_right: bool) -> Method:
    def run(budget: Budget, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        if sep is not None and from_right:
            _check_search_text(sep)
        budget.characters(2 * len(text))
        budget.operations(len(text) // _CHARACTERS_PER_PIECE if sep is None else text.count(_check_text(sep) or " "))
        pieces = split_marked(text, sep, _check_integer(maxsplit), from_right=from_right)
        budget.operations(len(pieces))
        return pieces

    return run


def _lines(budget: Budget, text: str, keepends: bool = False) -> list[str]:
    budget.characters(2 * len(text))
    budget.operations(len(text) // _CHARACTERS_PER_PIECE)
    lines = split_lines(text, bool(keepends))
    budget.operations(len(lines))
    return lines


def _without_prefix(budget: Budget, text: str, prefix: str) -> str:
    budget.characters(len(text))
    return slice_text(text, slice(len(prefix) if text.startswith(_check_text(prefix)) else 0, None))


def _without_suffix(budget: Budget, text: str, suffix: str) -> str:
    budget.characters(len(text))
    end = len(text) - len(suffix) if text.endswith(_check_text(suffix)) else len(text)
    return slice_text(text, slice(end))


def _join(budget: Budget, separator: str, parts: Any) -> str:
    if isinstance(parts, str):
        parts = split_characters(budget, parts)
    budget.operations(len(parts))
    return join_text(budget, [_check_text(part) for part in parts], separator)


def split_characters(budget: Budget, text: str) -> list[str]:
    """Return every character as a separate text."""
    budget.operations(len(text))
    return [add_marks(each, get_marks(text)[at : at + 1]) for at, each in enumerate(str(text))]


def _get(_budget: Budget, value: Mapping[Any, Any], key: Any, default: Any = None) -> Any:
    return value.get(check_key(key), default)


def _pairs(budget: Budget, value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    budget.operations(len(value))
    return list(value.items())


def _keys(budget: Budget, value: Mapping[Any, Any]) -> list[Any]:
    budget.operations(len(value))
    return list(value)


def _values(budget: Budget, value: Mapping[Any, Any]) -> list[Any]:
    budget.operations(len(value))
    return list(value.values())


def _copy(budget: Budget, value: Any) -> Any:
    budget.operations(len(value))
    return value.copy()


def _position(budget: Budget, value: Sequence[Any], *arguments: Any) -> int:
    for each in (value, *arguments):
        budget.weigh(each)
    return value.index(*arguments)


def _count(budget: Budget, value: Sequence[Any], item: Any) -> int:
    for each in (value, item):
        budget.weigh(each)
    return value.count(item)


def check_key(key: Any) -> Any:
    """Return `key`. Raises TypeError if it cannot be a mapping's key, e.g. for a list."""
    if not isinstance(key, (str, int, float, bool, type(None))):
        raise TypeError(f"unhashable type: {type(key).__name__!r}")
    return key


def _check_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value


def _check_search_text(value: Any) -> str:
    if len(_check_text(value)) > _MAX_SEARCHED:
        raise TemplateError(f"search text of {len(value)} characters; at most {_MAX_SEARCHED} are allowed")
    return str(value)


def _check_integer(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected an integer, not {type(value).__name__}")
    return value


METHODS: Mapping[type, Mapping[str, Method]] = {
    str: {
        **{name: _case(name) for name in _CASES},
        **{name: _query(name) for name in _QUERIES},
        "strip": _strip(True, True),
        "lstrip": _strip(True, False),
        "rstrip": _strip(False, True),
        "split": _split(False),
        "rsplit": _split(True),
        "splitlines": _lines,
        "replace": replace_text,
        "join": _join,
        "removeprefix": _without_prefix,
        "removesuffix": _without_suffix,
    },
    dict: {"get": _get, "items": _pairs, "keys": _keys, "values": _values, "copy": _copy},
    list: {"index": _position, "count": _count, "copy": _copy},
    tuple: {"index": _position, "count": _count},
}
