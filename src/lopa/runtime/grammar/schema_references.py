"""References of JSON schemas, resolved as Python's `jsonschema` does."""

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from lopa.runtime.errors import BadInputError

_MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_SCHEMAS = frozenset(("additionalProperties", "items", "additionalItems", "prefixItems", "allOf", "anyOf", "oneOf"))
_NAMES = frozenset(("$defs", "definitions", "$id", "id", "$anchor", "$dynamicAnchor"))
"""Keywords that only references need."""
_NEW_PLACES = frozenset(("$defs", "prefixItems"))
"""Keywords whose schemas have no names in drafts before 2019-09."""
_BESIDE = frozenset(("$ref", "$schema", "x-guidance"))
"""Keywords that count beside `$ref` in drafts before 2019-09."""
_MAX_SCHEMAS = 50_000
"""Largest number of schemas that the library compiles."""


def keyword_error(keyword: str, found: object, expected: str) -> BadInputError:
    """Return the error for a keyword whose answers could be invalid."""
    received = f"json_schema has {keyword} {found!s:.200}, which a grammar cannot guarantee"
    return BadInputError(received, expected=expected, remedy=f"change or remove {keyword}")


def map_schemas(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return `schema` with `change` applied to each schema directly in it."""
    made = dict(schema)
    for key, each in schema.items():
        if key in _MAPS and isinstance(each, dict):
            made[key] = {name: change(part) for name, part in each.items()}
        elif key in _SCHEMAS:
            made[key] = [change(part) for part in each] if isinstance(each, list) else change(each)
    return made


def with_definitions(schema: Any) -> dict[str, Any]:
    """Return `schema` with each schema that a reference reaches in its `$defs`, under a number.

    Raises BadInputError for a reference that leads to no schema.
    """
    if not isinstance(schema, dict):
        raise keyword_error("a value", schema, "an object")
    bases: dict[int, str] = {}
    named: dict[str, Any] = {"": schema}
    for part, base, names in _places(schema, "", ""):
        bases[id(part)] = base
        for name in names:
            if named.setdefault(name, part) != part:
                raise keyword_error("two schemas with the name", name, "names that differ")
    reached = [(schema, bases[id(schema)], str(schema.get("$schema", "")))]
    numbers = {(id(schema), *reached[0][1:]): 0}
    made: list[Any] = []
    left = iter(range(_MAX_SCHEMAS))

    def rewritten(part: Any, base: str, draft: str) -> Any:
        if not isinstance(part, dict):
            return part
        if next(left, None) is None:
            raise keyword_error("more schemas than", _MAX_SCHEMAS, "a smaller schema")
        draft = str(part.get("$schema", draft))
        is_alone = "$ref" in part and _is_old(reached[0][2])  # where other keywords do not count
        known = {key: each for key, each in part.items() if key in _BESIDE or not (is_alone or key in _NAMES)}
        copy = map_schemas(known, lambda each: rewritten(each, bases.get(id(each), base), draft))
        if "$ref" in part:
            target = _target(str(part["$ref"]), base, bases, named)
            number = numbers.setdefault((id(target[0]), target[1], draft), len(reached))
            if number == len(reached):
                reached.append((*target, draft))
            copy["$ref"] = f"#/$defs/{number}" if number else "#"
        return copy

    for part, base, draft in reached:  # which grows
        copy = rewritten(part, base, draft)
        made.append({"$schema": draft, **copy} if draft and isinstance(copy, dict) else copy)
    return {**made[0], "$defs": {str(number): each for number, each in enumerate(made) if number}}


def _is_old(draft: str) -> bool:
    return bool(re.search("draft-0[467]", draft))


def _places(schema: Any, base: str, draft: str) -> Iterator[tuple[dict[str, Any], str, list[str]]]:
    """Yield a schema and those in it, each with the URI that its references are relative to, and with its names."""
    if isinstance(schema, dict):
        draft = str(schema.get("$schema", draft))
        is_old = _is_old(draft)
        own = "" if is_old and "$ref" in schema else str(schema.get("id" if "draft-04" in draft else "$id", ""))
        base = base if own.startswith("#") else urljoin(base, own.rstrip("#"))
        anchors = [f"#{schema[each]}" for each in ("$anchor", "$dynamicAnchor") if each in schema]
        anchors = [own] * own.startswith("#") if is_old else anchors
        yield schema, base, [base] * (own[:1] not in ("", "#")) + [base + each for each in anchors]
        parts: list[Any] = []
        map_schemas({key: schema[key] for key in schema if key not in _NEW_PLACES or not is_old}, parts.append)
        for part in parts:
            yield from _places(part, base, draft)


def _target(reference: str, base: str, bases: dict[int, str], named: dict[str, Any]) -> tuple[Any, str]:
    """Return the schema that a reference leads to, and the URI that the references in it are relative to."""
    try:
        uri, pointer = (base, reference[1:]) if reference.startswith("#") else urldefrag(urljoin(base, reference))
        is_pointer = not pointer or pointer.startswith("/")
        found = named[uri if is_pointer else f"{uri}#{pointer}"]
        base = bases[id(found)]
        for token in unquote(pointer[1:]).split("/") if is_pointer and pointer else ():
            found = found[int(token) if isinstance(found, list) else token.replace("~1", "/").replace("~0", "~")]
            base = bases.get(id(found), base)
    except (LookupError, TypeError, ValueError):
        found = None
    if not isinstance(found, dict | bool):
        raise keyword_error("$ref", reference, "a reference to a schema in the same document")
    return found, base
