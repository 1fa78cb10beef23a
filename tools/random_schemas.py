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
