"""The field response_format as an option of ours: text, some JSON object, or what a schema allows. Knows no grammar."""

from typing import Any

from lopa.runtime.errors import BadInputError

TYPES = ("text", "json_object", "json_schema")
_ANY_OBJECT = {"type": "object"}
_VALUES = {"json": ("json_schema", "value"), "regex": ("regex", "value"), "grammar": ("grammar", "grammar")}
"""Types of other servers (TGI, Fireworks): the option of ours, and the field that has its value."""


def option_of_response_format(value: Any) -> dict[str, Any]:
    """Return the option that `value` asks for, by name; none for text.

    Raises BadInputError for an unknown type, and for one without what the answer has to be. Other fields of a
    json_schema (name, description, strict) change nothing. A json_object may have a `schema`, as llama.cpp's.
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
            f"response_format {str(value)[:80]}",
            expected="an object whose type is " + ", ".join(TYPES),
            remedy="choose one; a regex or a grammar is an option in lopa",
        )
    return {}


def _schema(value: Any, holder: Any) -> dict[str, Any]:
    schema = holder.get("schema") if isinstance(holder, dict) else None
    if isinstance(schema, dict):
        return schema
    raise BadInputError(
        f"response_format {str(value)[:80]}",
        expected='{"type": "json_schema", "json_schema": {"name": text, "schema": an object}}',
        remedy="give the schema",
    )
