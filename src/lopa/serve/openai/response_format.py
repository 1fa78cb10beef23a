"""Field response_format as a lopa option: text, any JSON object, or a schema. This module does not depend on
grammars."""

from typing import Any

from lopa.runtime.errors import BadInputError

TYPES = ("text", "json_object", "json_schema")
_ANY_OBJECT = {"type": "object"}
_VALUES = {"json": ("json_schema", "value"), "regex": ("regex", "value"), "grammar": ("grammar", "grammar")}
"""Types of other servers (TGI, Fireworks), with lopa's option and the field with its value."""


def option_from_response_format(value: Any) -> dict[str, Any]:
    """Return the option that `value` requests, by name, or an empty dict for text.

    Raises BadInputError for an unknown type, and for a missing schema, regex or grammar. Other fields of a json_schema
    (name, description, strict) have no effect. A json_object may have a `schema`, as in llama.cpp.
    """
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object" and value.get("schema") is None:
        return {"json_schema": _ANY_OBJECT}
    if kind == "json_object":
        return {"json_schema": _schema(value, value)}
    if kind == "json_schema":
        return {"json_schema": _schema(value, value.get("json_schema"))}
    if isinstance(kind, str) and kind in _VALUES and value.get(_VALUES[kind][1]) is not None:
        option, field = _VALUES[kind]
        return {option: value[field]}
    if kind != "text":
        raise BadInputError(
            f"invalid response_format {str(value)[:80]}",
            expected="an object with a type among " + ", ".join(TYPES),
            remedy="choose a type; put a regex or a grammar into lopa",
        )
    return {}


def _schema(value: Any, holder: Any) -> dict[str, Any]:
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if isinstance(schema, dict):
        return schema
    raise BadInputError(
        f"invalid response_format {str(value)[:80]}",
        expected='{"type": "json_schema", "json_schema": {"name": STRING, "schema": OBJECT}}',
        remedy="add the schema",
    )
