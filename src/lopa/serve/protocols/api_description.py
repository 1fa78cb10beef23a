"""The HTTP API as an OpenAPI document, made from the tables by which bodies are read."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from lopa import __version__
from lopa.runtime.generation_config import OPTION_TABLE
from lopa.runtime.options.option import Option
from lopa.serve.openai.body_options import LOPA_FIELD, TYPED_FIELDS
from lopa.serve.openai.foreign_options import MAPPED, NEUTRAL
from lopa.serve.openai.request import READ_FIELDS

_COMPLETION = "a completion, as one response or as a stream"
PATHS: Mapping[str, tuple[str, ...]] = {
    "GET /": ("a page that shows two decodes side by side",),
    "GET /v1/models": ("the model, its length limit, whether it has canvases, and the paths that it answers",),
    "GET /v1/models/{name}": ("the same for one name",),
    "POST /v1/chat/completions": (_COMPLETION, "model", "messages"),
    "POST /v1/completions": (_COMPLETION, "model"),
    "POST /v1/messages": (
        "Anthropic's messages, as one response or as a stream", "model", "max_tokens", "messages",
    ),
    "POST /v1/responses": ("OpenAI's responses, as one response or as a stream", "model", "input"),
    "POST /v1/score": ("the probabilities of given answers", "model", "choices"),
    "POST /v1/messages/count_tokens": ("the number of tokens of a prompt of `/v1/messages`", "model", "messages"),
    "POST /tokenize": ("the token ids of a text or a chat",),
    "POST /detokenize": ("the text of token ids", "tokens"),
    "GET /version": ("the version of lopa-export",),
    "GET /openapi.json": ("this interface as an OpenAPI document",),
    "GET /health": ("200 from the start while the process can continue, 503 after a device failed",),
    "GET /ready": ("200 while requests are accepted; 503 while the bundle opens, the server stops or after a failure",),
    "GET /metrics": ("metrics in Prometheus's text format",),
}  # fmt: skip
"""Description of each path's answer, and the fields that its body must have, by method and path."""
_KINDS = {int: "integer", float: "number", bool: "boolean", str: "string"}
_OBJECT = {"type": ["object", "null"]}
_SCHEMAS = "#/components/schemas/"


def api_description() -> dict[str, Any]:
    """Return the OpenAPI document. Its schemas refuse no body that the server accepts."""
    fields = {
        **{name: {"enum": [*values, None]} for name, values in NEUTRAL.items() if name not in READ_FIELDS},
        **{name: {} for name in MAPPED},
        **{name: _schema(OPTION_TABLE[option]) for name, option in TYPED_FIELDS.items()},
        **{"model": {"type": "string"}, "stream": {"type": ["boolean", "null"]}, "stream_options": _OBJECT},
        LOPA_FIELD: {"$ref": f"{_SCHEMAS}Options"},
    }
    schemas = {
        "Fields": {"type": "object", "properties": fields},
        "Options": {**_OBJECT, "properties": {name: _schema(each) for name, each in OPTION_TABLE.items()}},
        "Error": {"type": "object", "properties": {"error": {"type": "object"}}},
    }
    paths: dict[str, dict[str, Any]] = {}
    for name, (answer, *required) in PATHS.items():
        method, path = name.split()
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, answer, required)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lopa-export", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(method: str, path: str, answer: str, required: list[str]) -> dict[str, Any]:
    """Return what a client sends, and what it receives."""
    error = {"description": "an error", "content": _json({"$ref": f"{_SCHEMAS}Error"})}
    found: dict[str, Any] = {"summary": answer, "responses": {"200": {"description": answer}, "default": error}}
    if "{name}" in path:
        found["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    if method == "POST":
        found["requestBody"] = {"required": True, "content": _json({"$ref": f"{_SCHEMAS}Fields", "required": required})}
    if method == "POST" or path.startswith("/v1/"):
        found["security"] = [{"key": []}, {}]  # a server without keys needs none
    return found


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


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
