"""The HTTP API as an OpenAPI document, made from the tables by which bodies are read."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from lopa import __version__
from lopa.runtime.generation_config import OPTION_TABLE
from lopa.runtime.options.option import Option
from lopa.serve.openai.body_options import (
    CHATS,
    COMPLETIONS,
    COUNT_TOKENS,
    DETOKENIZE,
    LOPA_FIELD,
    MESSAGES,
    RESPONSES,
    SCORES,
    TOKENIZE,
    TYPED_FIELDS,
)
from lopa.serve.openai.foreign_options import MAPPED, NEUTRAL
from lopa.serve.openai.request import READ_FIELDS

_COMPLETION = "a completion, as one response or as a stream"
PATHS: Mapping[str, str] = {
    "GET /": "a page that shows two decodes side by side",
    "GET /v1/models": "the model, its length limit and the paths that it answers",
    "GET /v1/models/{name}": "the same for one name",
    f"POST {CHATS}": _COMPLETION,
    f"POST {COMPLETIONS}": _COMPLETION,
    f"POST {MESSAGES}": "Anthropic's messages, as one response or as a stream",
    f"POST {RESPONSES}": "OpenAI's responses, as one response or as a stream",
    f"POST {SCORES}": "the probabilities of given answers",
    f"POST {COUNT_TOKENS}": f"the number of tokens of a prompt of `{MESSAGES}`",
    f"POST {TOKENIZE}": "the token ids of a text or a chat",
    f"POST {DETOKENIZE}": "the text of token ids",
    "GET /version": "the version of lopa-export",
    "GET /openapi.json": "this interface as an OpenAPI document",
    "GET /health": "200 from the start while the process can continue, 503 after a device failed",
    "GET /ready": "200 while requests are accepted; 503 while the bundle opens, while the server stops or after a "
    "failure",
    "GET /metrics": "metrics in Prometheus's text format",
}
"""What each path answers, by its method and path."""
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    **{CHATS: ("model", "messages"), COMPLETIONS: ("model",), RESPONSES: ("model", "input"), DETOKENIZE: ("tokens",)},
    **{
        MESSAGES: ("model", "max_tokens", "messages"),
        COUNT_TOKENS: ("model", "messages"),
        SCORES: ("model", "choices"),
    },
    TOKENIZE: (),
}
"""Required fields of each body."""
_KINDS = {int: "integer", float: "number", bool: "boolean", str: "string"}
_OBJECT = {"type": ["object", "null"]}


def api_description() -> dict[str, Any]:
    """Return the OpenAPI document. Its schemas refuse no body that the server accepts."""
    fields = {
        **{name: {"enum": [*values, None]} for name, values in NEUTRAL.items() if name not in READ_FIELDS},
        **{name: {} for name in MAPPED},
        **{name: _schema(OPTION_TABLE[option]) for name, option in TYPED_FIELDS.items()},
        "model": {"type": "string"},
        "stream": {"type": ["boolean", "null"]},
        "stream_options": _OBJECT,
        LOPA_FIELD: {"$ref": "#/components/schemas/Options"},
    }
    error = {"message": _typed("string"), "type": _typed("string"), "param": {}, "code": {}}
    schemas = {
        "Fields": {"type": "object", "properties": fields},
        "Options": {**_OBJECT, "properties": {name: _schema(each) for name, each in OPTION_TABLE.items()}},
        "Error": {"type": "object", "properties": {"error": {"type": "object", "properties": error}}},
    }
    paths: dict[str, dict[str, Any]] = {}
    for name, answer in PATHS.items():
        method, path = name.split()
        paths.setdefault(path, {})[method.lower()] = _operation(path, answer)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lopa-export", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(path: str, answer: str) -> dict[str, Any]:
    """Return what a client sends to `path`, and what it receives."""
    found: dict[str, Any] = {
        "summary": answer,
        "responses": {
            "200": {"description": answer},
            "default": {"description": "an error", "content": _json({"$ref": "#/components/schemas/Error"})},
        },
    }
    if "{name}" in path:
        found["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _typed("string")}]
    if path in _REQUIRED:
        body = {"allOf": [{"$ref": "#/components/schemas/Fields"}], "required": list(_REQUIRED[path])}
        found["requestBody"] = {"required": True, "content": _json(body)}
    if path in _REQUIRED or path.startswith("/v1/"):
        found["security"] = [{"key": []}, {}]  # a server without keys needs none
    return found


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _typed(kind: str) -> dict[str, Any]:
    return {"type": kind}


def _schema(option: Option) -> dict[str, Any]:
    """Return the schema of an option's values. Those of several types have none."""
    kind, found = option.value_kind, {"description": option.help}
    if get_origin(kind) is Literal:
        return {**found, "enum": [*get_args(kind), None]}
    if kind not in _KINDS:
        return found
    least = "exclusiveMinimum" if option.above else "minimum"
    is_bounded = kind in (int, float) and option.check is None
    bounds = {least: option.min, "maximum": option.max} if is_bounded else {}
    return {**found, "type": [_KINDS[kind], "null"], **bounds}
