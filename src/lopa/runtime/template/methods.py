"""The methods of texts, lists and mappings that a chat template may call. Knows no syntax.

Each takes the budget, the value and the arguments of the call, and does what Python's does.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, Undefined

from lopa.runtime.template.budget import Budget
from lopa.runtime.template.text import (
    from_message,
    joined,
    lines_of,
    marked,
    marks_of,
    part_of,
    recased,
    replaced,
    split,
    stripped,
)

Method = Callable[..., Any]

_MAX_INDENT = 16
_CHARACTERS_A_PIECE = 20
"""What a line or a word is taken to have before it is known: bounds how many are made at all."""
_MAX_SOUGHT = 100
"""Characters of what Python searches in time that grows with their number too: from the right, and to strip."""
_CASES = ("upper", "lower", "title", "capitalize")
_LOOKS = (
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
    *("isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower"),
)


def text_from(budget: Budget, value: Any) -> str:
    """What `{{ value }}` writes."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float, Undefined)):
        return str(value)
    if isinstance(value, (list, tuple, Mapping)):
        weight = budget.weigh(value)
        return from_message(str(value)) if weight.from_message else str(value)
    return f"<{type(value).__name__.lower()}>"


def joined_text(budget: Budget, parts: Sequence[Any], separator: str = "") -> str:
    """The parts as texts, one behind the other."""
    texts = [text_from(budget, part) for part in parts]
    budget.characters(sum(map(len, texts)) + len(separator) * len(texts))
    return joined(texts, separator)


def replaced_text(budget: Budget, text: str, old: str, new: str, count: int = -1) -> str:
    """`text` with `new` for `old`; its size is known before it is made."""
    for each in (old, new):
        _text(each)
    budget.characters(len(text) + len(old))
    found = text.count(old)
    budget.operations(found)
    budget.characters(max(0, found * len(new)))
    return replaced(text, old, new, _whole(count))


def json_text(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`value` as JSON, without jinja's HTML escapes."""
    if indent is not None and not 0 <= _whole(indent) <= _MAX_INDENT:
        raise TemplateError(f"tojson with indent {indent}: at most {_MAX_INDENT}")
    if separators is not None and (len(separators) != 2 or any(len(_text(each)) > _MAX_INDENT for each in separators)):
        raise TemplateError(f"tojson takes two separators of at most {_MAX_INDENT} characters")
    weight = budget.weigh(value)
    around = 2 * _MAX_INDENT + (indent or 0) * (weight.depth + 1)
    budget.characters(6 * weight.characters + around * weight.elements)  # an escaped character takes six
    text = json.dumps(
        value,
        ensure_ascii=bool(ensure_ascii),
        indent=indent,
        separators=None if separators is None else (separators[0], separators[1]),
        sort_keys=bool(sort_keys),
    )
    return from_message(text) if weight.from_message else text


def _case(name: str) -> Method:
    def run(budget: Budget, text: str) -> str:
        budget.characters(3 * len(text))
        return recased(text, getattr(str, name)(text))

    return run


def _look(name: str) -> Method:
    def run(budget: Budget, text: str, *arguments: Any) -> Any:
        budget.characters(len(text))
        for each in arguments:
            budget.weigh(each)
        if name in ("rfind", "rindex"):
            _sought(arguments[0])
        return getattr(str, name)(text, *arguments)

    return run


def _strip(left: bool, right: bool) -> Method:
    def run(budget: Budget, text: str, characters: str | None = None) -> str:
        budget.characters(2 * len(text))
        return stripped(text, None if characters is None else _sought(characters), left=left, right=right)

    return run


def _split(from_right: bool) -> Method:
    def run(budget: Budget, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        if sep is not None and from_right:
            _sought(sep)
        budget.characters(2 * len(text))
        budget.operations(len(text) // _CHARACTERS_A_PIECE if sep is None else text.count(_text(sep) or " "))
        pieces = split(text, sep, _whole(maxsplit), from_right=from_right)
        budget.operations(len(pieces))
        return pieces

    return run


def _lines(budget: Budget, text: str, keepends: bool = False) -> list[str]:
    budget.characters(2 * len(text))
    budget.operations(len(text) // _CHARACTERS_A_PIECE)
    lines = lines_of(text, bool(keepends))
    budget.operations(len(lines))
    return lines


def _without_prefix(budget: Budget, text: str, prefix: str) -> str:
    budget.characters(len(text))
    return part_of(text, slice(len(prefix) if text.startswith(_text(prefix)) else 0, None))


def _without_suffix(budget: Budget, text: str, suffix: str) -> str:
    budget.characters(len(text))
    end = len(text) - len(suffix) if text.endswith(_text(suffix)) else len(text)
    return part_of(text, slice(end))


def _join(budget: Budget, separator: str, parts: Any) -> str:
    if isinstance(parts, str):
        parts = characters_of(budget, parts)
    budget.operations(len(parts))
    return joined_text(budget, [_text(part) for part in parts], separator)


def characters_of(budget: Budget, text: str) -> list[str]:
    """Every character as a text of its own."""
    budget.operations(len(text))
    return [marked(each, marks_of(text)[at : at + 1]) for at, each in enumerate(str(text))]


def _get(_budget: Budget, value: Mapping[Any, Any], key: Any, default: Any = None) -> Any:
    return value.get(key_of(key), default)


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


def _count(budget: Budget, value: Sequence[Any], wanted: Any) -> int:
    for each in (value, wanted):
        budget.weigh(each)
    return value.count(wanted)


def key_of(key: Any) -> Any:
    """`key`, if it can be one of a mapping here: nothing that holds other values."""
    if not isinstance(key, (str, int, float, bool, type(None))):
        raise TypeError(f"unhashable type: {type(key).__name__!r}")
    return key


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {type(value).__name__}")
    return value


def _sought(value: Any) -> str:
    if len(_text(value)) > _MAX_SOUGHT:
        raise TemplateError(f"it looks for {len(value)} characters: at most {_MAX_SOUGHT}")
    return str(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"a whole number was expected, not {type(value).__name__}")
    return value


METHODS: Mapping[type, Mapping[str, Method]] = {
    str: {
        **{name: _case(name) for name in _CASES},
        **{name: _look(name) for name in _LOOKS},
        "strip": _strip(True, True),
        "lstrip": _strip(True, False),
        "rstrip": _strip(False, True),
        "split": _split(False),
        "rsplit": _split(True),
        "splitlines": _lines,
        "replace": replaced_text,
        "join": _join,
        "removeprefix": _without_prefix,
        "removesuffix": _without_suffix,
    },
    dict: {"get": _get, "items": _pairs, "keys": _keys, "values": _values, "copy": _copy},
    list: {"index": _position, "count": _count, "copy": _copy},
    tuple: {"index": _position, "count": _count},
}
