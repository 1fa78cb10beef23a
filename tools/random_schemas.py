"""Random JSON schemas of llguidance's features, small enough for the toy model's positions."""

import random
from typing import Any

_NAMES = ("name", "n", "total", "item", "price", "ok", "tags", "unit", "answer", "note")
_PATTERNS = ("^[a-z]{2,6}$", "^[0-9]{4}-[0-9]{2}$", "^(yes|no)$", "ab+c")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "hostname")
_CONSTANTS = ("red", "green", 3, None, True, "a b", 2.5, "é", {"a": [1, 2]})


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """Return an object schema of up to four properties, nested up to `depth` levels."""
    return _object(rng, depth)


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    makers = [_string, _integer, _number, _constant, _enum]
    if depth:
        makers += [_object, _object, _array, _one_of_several]
    return rng.choice(makers)(rng, depth)


def _string(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: ARG001
    minimum = rng.randint(0, 5)
    more: list[dict[str, Any]] = [
        {},
        {"minLength": minimum, "maxLength": minimum + rng.randint(0, 10)},
        {"pattern": rng.choice(_PATTERNS)},
        {"format": rng.choice(_FORMATS)},
    ]
    return {"type": "string", **rng.choice(more)}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: ARG001
    minimum = rng.randint(-200, 200)
    bounds = {"minimum": minimum, "maximum": minimum + rng.randint(10, 500)} if rng.random() < 0.6 else {}
    return {"type": "integer", **bounds, **({"multipleOf": rng.choice([2, 5, 10])} if rng.random() < 0.2 else {})}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: ARG001
    low = rng.choice(["minimum", "exclusiveMinimum"])
    bounds = {low: round(rng.uniform(-5, 5), 2), "maximum": round(rng.uniform(6, 50), 2)} if rng.random() < 0.5 else {}
    return {"type": "number", **bounds}


def _constant(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: ARG001
    return rng.choice([{"const": rng.choice(_CONSTANTS)}, {"type": "boolean"}, {"type": "null"}])


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: ARG001
    return {"enum": rng.sample(_CONSTANTS, rng.randint(1, 4))}


def _one_of_several(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    minimum = rng.randint(0, 2)
    bounds = {"minItems": minimum, "maxItems": minimum + rng.randint(0, 3)} if rng.random() < 0.6 else {}
    return {"type": "array", "items": _any(rng, depth - 1), **bounds}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(1, 4))
    others: list[dict[str, Any]] = [
        *3 * [{"additionalProperties": False}],
        {},
        {"additionalProperties": _any(rng, 0)},
        {"patternProperties": {"^x_": _any(rng, 0)}},
    ]
    return {
        "type": "object",
        "properties": {name: _any(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        **rng.choice(others),
    }


def wide_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """Return a schema of any type with all keywords of grammars, including combinations that are refused."""
    makers = [_wide_string, _wide_number, _constant, _enum]
    if depth:
        makers += [_wide_object, _wide_object, _wide_array, _combined]
    made = rng.choice(makers)(rng, depth)
    return {key: value for key, value in made.items() if key != "type"} if rng.random() < 0.1 else made


_WIDE_PATTERNS = (
    *_PATTERNS,
    *(r"^\d+$", r"\w", r"^\W+$", "^.{1,3}$", r"\s", r"^\S{2}$", "a|b$", "^x_", "[^a-f]", r"^[\w.-]+@\w+$"),
    *(r"^[^\s\d]{1,4}$", "(?i)yes|no", "^$", "[&&]", "[a[b]", "[.]", "(^a|b)c", r"^-?\d+(\.\d{1,2})?$"),
    *(r'^[^"]{1,3}$', r'^[^"\\]+$', r"^[^\\]$", r'^[^<>:"/\\|?*]+$', "^[^ -~]$", r"^[\x00-\x1f]$", r"^\P{P}$"),
)
_WIDE_FORMATS = (*_FORMATS, "ipv6", "email", "uri", "duration")
_BOUNDS = (0, 1, -1, 0.1, 1e-7, 99.99, -0.01, 123456.789, 10**15, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 1e20)
_FACTORS = (2, 5, 7, 0.5, 0.25, 0.01, 1.5, 3.0, 10**6)
_KEYS = ("a", "b", "é", "a b", 'q"', "x_1", "0")


def _sometimes(rng: random.Random, choices: dict[str, Any], share: float) -> dict[str, Any]:
    """Return each of the keywords with the probability `share`, in a random order."""
    made = [(key, value() if callable(value) else value) for key, value in choices.items() if rng.random() < share]
    rng.shuffle(made)
    return dict(made)


def _wide_string(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: ARG001
    minimum = rng.randint(0, 4)
    choices = {
        "minLength": minimum,
        "maxLength": minimum + rng.randint(0, 6),
        "pattern": rng.choice(_WIDE_PATTERNS),
        "format": rng.choice(_WIDE_FORMATS),
    }
    return {"type": "string", **_sometimes(rng, choices, 0.3)}


def _wide_number(rng: random.Random, depth: int) -> dict[str, Any]:  # noqa: ARG001
    names = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    choices = {
        name: rng.choice((rng.randint(-20, 20), round(rng.uniform(-5, 5), 3), rng.choice(_BOUNDS))) for name in names
    }
    factor = {"multipleOf": rng.choice(_FACTORS)} if rng.random() < 0.2 else {}
    return {"type": rng.choice(["integer", "number"]), **_sometimes(rng, choices, 0.3), **factor}


def _wide_object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_KEYS, rng.randint(0, 3))
    choices = {
        "properties": lambda: {name: wide_schema(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": lambda: rng.choice([False, True, wide_schema(rng, 0)]),
        "patternProperties": lambda: {rng.choice(_WIDE_PATTERNS): wide_schema(rng, 0)},
        "minProperties": rng.randint(0, 4),
        "maxProperties": rng.randint(1, 4),
        "allOf": lambda: [wide_schema(rng, 0)],
    }
    return {"type": "object", **_sometimes(rng, choices, 0.4)}


def _wide_array(rng: random.Random, depth: int) -> dict[str, Any]:
    choices = {
        "items": lambda: rng.choice([False, wide_schema(rng, depth - 1)]),
        "prefixItems": lambda: [wide_schema(rng, depth - 1)],
        "additionalItems": lambda: rng.choice([False, wide_schema(rng, 0)]),
        "minItems": rng.randint(0, 2),
        "maxItems": rng.randint(2, 4),
        "allOf": lambda: [wide_schema(rng, 0)],
    }
    return {"type": "array", **_sometimes(rng, choices, 0.4)}


def _combined(rng: random.Random, depth: int) -> dict[str, Any]:
    maker, keyword = rng.choice([_wide_number, _wide_string, _wide_object]), rng.choice(["allOf", "anyOf", "oneOf"])
    parts = [maker(rng, 0) if keyword == "allOf" else wide_schema(rng, depth - 1) for _ in range(2)]
    return {keyword: parts, **(wide_schema(rng, 0) if rng.random() < 0.3 else {})}
