"""The field response_format as an option of ours: text, some JSON object, or what a schema allows. Knows no grammar."""

from typing import Any

from lopa.runtime.errors import BadInputError

TYPES = ("text", "json_object", "json_schema")
_ANY_OBJECT = {"type": "object"}


def option_of_response_format(value: Any) -> dict[str, Any]:
    """The option that `value` asks for, by name; none for text. Raises BadInputError for any other type, and for a
    json_schema without a schema. Other fields of a json_schema (name, description, strict) change nothing."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object":
        return {"json_schema": _ANY_OBJECT}
    if kind == "json_schema":
        given = value.get("json_schema")
        schema = given.get("schema") if isinstance(given, dict) else None
        if not isinstance(schema, dict):
            raise BadInputError(
                f"response_format {str(value)[:80]}",
                expected='{"type": "json_schema", "json_schema": {"name": text, "schema": an object}}',
                remedy="give the schema",
            )
        return {"json_schema": schema}
    if kind != "text":
        raise BadInputError(
            f"response_format {str(value)[:80]}",
            expected="an object whose type is " + ", ".join(TYPES),
            remedy="choose one; a regex or a grammar is an option in lopa",
        )
    return {}
