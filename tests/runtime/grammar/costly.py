"""Short grammars that take seconds or gigabytes, and ordinary ones."""

import json
from typing import Any


def _patterns(count: int) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": f".*{chr(97 + number)}.*"} for number in range(count)]


def _multiples(*factors: int) -> list[dict[str, Any]]:
    return [{"type": "integer", "multipleOf": factor} for factor in factors]


COSTLY: dict[str, dict[str, Any]] = {
    "multiples": {"json_schema": json.dumps({"allOf": _multiples(211, 199, 197)})},
    "patterns": {"json_schema": json.dumps({"allOf": _patterns(22)})},
    "letters": {
        "json_schema": json.dumps(
            {"anyOf": [{"type": "string", "pattern": f"^\\p{{L}}{{{200 + number}}}$"} for number in range(16)]}
        )
    },
    "constant": {"json_schema": json.dumps({"const": {f"k{number}": list(range(100)) for number in range(200)}})},
}
"""Costly options by name. Each takes more than a second of processor time."""
KEPT = {"json_schema": json.dumps({"allOf": _multiples(311, 307)})}
"""Grammar that takes 0.3 s and 20 MB to compile for each of two matchers, and little time for an ending."""
USUAL: dict[str, dict[str, Any]] = {
    "object": {
        "json_schema": json.dumps(
            {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            }
        )
    },
    "pattern": {"json_schema": '{"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$"}'},
    "expression": {"regex": " The answer is [0-9]{1,4}\\."},
    "lark": {"grammar": 'start: "yes" | "no" /[0-9]{3}/'},
}
REFUSED: dict[str, dict[str, Any]] = {
    "expression": {"regex": "(("},
    "keyword": {"json_schema": '{"not": {"type": "string"}}'},
    "remaining": {"regex": "a{500}"},
    "lark": {"grammar": "start: nothing"},
}
