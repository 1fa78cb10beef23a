"""Invalid requests and the expected errors. Tools of some are meant to exhaust time or memory."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lopa.serve.openai.body_options import CHATS, COMPLETIONS, LOPA_FIELD, MESSAGES, RESPONSES

MAX_BODY = 2_000_000
"""Maximum body size of the server in bytes."""
_MAX_TOOLS = 128
_Schema = Mapping[str, Any]


@dataclass(frozen=True)
class BadRequest:
    """A request with the expected status, code and param of the reply."""

    path: str
    body: bytes
    status: int
    code: str | None
    param: str | None = None


def bad_requests(model: str) -> tuple[BadRequest, ...]:
    """Return requests that a server of `model` with MAX_BODY must reject."""
    unreadable = [BadRequest(CHATS, body, 400, "invalid_json") for body in (b"", b"[]", b'{"model": ', b"\xff\xfe")]
    too_large = BadRequest(COMPLETIONS, b" " * (MAX_BODY + 1), 413, "body_too_large")
    fields = [
        BadRequest(path, json.dumps(body).encode(), 400, None, param) for path, body, param in _invalid_bodies(model)
    ]
    unknown = BadRequest(
        COMPLETIONS, json.dumps({"model": "other", "prompt": "1"}).encode(), 404, "model_not_found", "model"
    )
    long = json.dumps({"model": model, "prompt": [5] * 5000}).encode()
    too_long = BadRequest(COMPLETIONS, long, 400, "context_length_exceeded", "prompt")
    return (*unreadable, too_large, *fields, unknown, too_long, *hostile_requests(model))


def hostile_requests(model: str) -> Iterator[BadRequest]:
    """Yield chats of all endpoints with tools that no server can use."""
    for tools in _hostile_tools():
        functions = [each["function"] for each in tools]
        chat = {"model": model, "messages": [{"role": "user", "content": "1"}]}
        message_tools = [{"name": each["name"], "input_schema": each["parameters"]} for each in functions]
        response_tools = [{"type": "function", **each} for each in functions]
        bodies = {
            CHATS: {**chat, "tools": tools, "tool_choice": "required"},
            MESSAGES: {**chat, "max_tokens": 100, "tools": message_tools, "tool_choice": {"type": "any"}},
            RESPONSES: {"model": model, "input": "1", "tools": response_tools, "tool_choice": "required"},
        }
        for path, body in bodies.items():
            yield BadRequest(path, json.dumps(body).encode(), 400, None, "tools")


def _invalid_bodies(model: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield bodies with one invalid field, and its name."""
    for field, value in (
        ("max_tokens", 0),
        ("max_tokens", "many"),
        ("n", 1000),
        ("temperature", -1),
        ("stop", ["x"] * 1000),
        ("stream", "yes"),
        ("tools", [{"type": "function"}]),
        ("prompt", 12),
    ):
        yield COMPLETIONS, {"model": model, "prompt": "1 + 1", field: value}, field
    yield COMPLETIONS, {"model": model, "prompt": "1 + 1", LOPA_FIELD: {"speed": 2}}, f"{LOPA_FIELD}.speed"
    yield COMPLETIONS, {"prompt": "1 + 1"}, "model"
    yield CHATS, {"model": model, "messages": []}, "messages"
    yield CHATS, {"model": model, "messages": [{"role": "robot", "content": "1"}]}, "messages"


def _hostile_tools() -> Iterator[list[dict[str, Any]]]:
    """Yield lists of tools that no server can use."""
    for schema in _schemas():
        yield [_tool("f", schema)]
    yield [_tool(f"f{number}", _properties(100)) for number in range(_MAX_TOOLS)]
    yield [_tool(f"f{number}", {}) for number in range(_MAX_TOOLS + 1)]
    yield [_tool("f" * 100_000, {})]


def _schemas() -> tuple[_Schema, ...]:
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(90):  # the body itself may have 200 levels
        nested = {"type": "object", "properties": {"x": nested}, "required": ["x"]}
    patterns = [{"type": "string", "pattern": f".*{chr(97 + number)}.*"} for number in range(22)]
    return (
        {"properties": {"x": {"$ref": "#"}}, "required": ["x"]},
        _required({"$ref": "#/$defs/a"}, {"a": {"$ref": "#/$defs/a"}}),
        _required({"$ref": "http://localhost:1/schema.json"}),
        nested,
        _required({"enum": [f"v{number}" for number in range(100_000)]}),
        _properties(10_000),
        _required({"allOf": patterns}),
        _required({"allOf": [{"type": "integer", "multipleOf": each} for each in (9973, 9967, 9949, 9941)]}),
        _required({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
    )


def _tool(name: str, parameters: _Schema) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def _required(schema: _Schema, definitions: _Schema | None = None) -> _Schema:
    found = {"properties": {"x": schema}, "required": ["x"]}
    return found if definitions is None else {**found, "$defs": definitions}


def _properties(count: int) -> _Schema:
    names = [f"property_{number}" for number in range(count)]
    return {"properties": {name: {"type": "string"} for name in names}, "required": names}
