"""Chats with tools whose schemas are meant to exhaust time or memory."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
MAX_TOOLS = 128
NOT_ABOUT_TOOLS = ("repeated repeats", "chain of 3,000 references", "property of 100,000 letters")
"""Names of tools that are usable, or whose prompt is too long for a small model."""


def hostile_tools() -> dict[str, list[dict[str, Any]]]:
    """Return lists of tools by what is hostile about them. A chat with any of them must get a typed error."""
    one = {name: [_tool("f", schema)] for name, schema in _schemas().items()}
    return {
        **one,
        "128 tools of 100 properties": [_tool(f"f{number}", _properties(100)) for number in range(MAX_TOOLS)],
        "129 tools": [_tool(f"f{number}", {}) for number in range(MAX_TOOLS + 1)],
        "name of 100,000 letters": [_tool("f" * 100_000, {})],
    }


def _schemas() -> dict[str, Schema]:
    count = 3000
    chain = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(count)}
    last = {f"d{count}": {"type": "string"}}
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        nested = {"type": "object", "properties": {"x": nested}, "required": ["x"]}
    patterns = [{"type": "string", "pattern": f".*{chr(97 + number)}.*"} for number in range(22)]
    return {
        "chain of 3,000 references": {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**chain, **last}},
        "recursion without end": {"properties": {"x": {"$ref": "#"}}, "required": ["x"]},
        "reference to itself": _required({"$ref": "#/$defs/a"}, {"a": {"$ref": "#/$defs/a"}}),
        "reference to another host": _required({"$ref": "http://localhost:1/schema.json"}),
        "200 levels": nested,
        "100,000 values": _required({"enum": [f"v{number}" for number in range(100_000)]}),
        "10,000 properties": _properties(10_000),
        "property of 100,000 letters": {"properties": {"x" * 100_000: {"type": "string"}}},
        "repeated repeats": _required({"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"}),
        "22 patterns at once": _required({"allOf": patterns}),
        "multiples of large numbers": _required({"allOf": [_multiple(each) for each in (9973, 9967, 9949, 9941)]}),
        "million items": _required({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    }


def _tool(name: str, parameters: Schema) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def _required(schema: Schema, definitions: Schema | None = None) -> Schema:
    found = {"properties": {"x": schema}, "required": ["x"]}
    return found if definitions is None else {**found, "$defs": definitions}


def _properties(count: int) -> Schema:
    names = [f"property_{number}" for number in range(count)]
    return {"properties": {name: {"type": "string"} for name in names}, "required": names}


def _multiple(factor: int) -> Schema:
    return {"type": "integer", "multipleOf": factor}
