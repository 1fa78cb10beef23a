"""Tools and the choice among them, checked, from the fields of a chat body. This module does not depend on formats."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lopa.runtime.checked_values import check_bool, shown
from lopa.runtime.errors import BadInputError, field_errors

MAX_TOOLS = 128
"""Maximum tools of a request, as in OpenAI's API."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_TOOL_FORM = {
    "expected": '{"type": "function", "function": {"name": STRING, "parameters": JSON SCHEMA}}',
    "remedy": "correct the tool",
}
_CHOICES = ("none", "auto", "required")
_CHOICE_FORM = {
    "expected": '"none", "auto", "required", {"type": "function", "function": {"name": STRING}}, or allowed_tools '
    "with a mode and a list of tools",
    "remedy": "correct tool_choice",
}


Choice = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Tool:
    """One function that a model may call."""

    name: str
    parameters: Mapping[str, Any]
    """JSON schema of its arguments, an object."""
    strict: bool
    """True if a schema with features that grammars lack is an error. Otherwise these features are ignored."""
    definition: Mapping[str, Any]
    """The tool as the client sent it, for the chat template."""


@dataclass(frozen=True)
class ToolRequest:
    """Tools of one request and which of them the answer may or must call."""

    tools: tuple[Tool, ...]
    choice: Choice
    """none shows the tools to the model, but allows no call."""
    parallel: bool = True
    """True if the answer may have several calls."""
    allowed: frozenset[str] | None = None
    """Names of the only tools that the answer may call, or None for all."""

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Tools that the answer may call."""
        return tuple(each for each in self.tools if self.allowed is None or each.name in self.allowed)


def tools_from_body(body: Mapping[str, Any]) -> ToolRequest | None:
    """Return the tools of a body with `tools`, `tool_choice` and `parallel_tool_calls`, or None if it has none.

    Raises FieldError for an invalid field, a name that no tool has, and a choice without tools.
    """
    with field_errors("tools"):
        tools = _tools(body.get("tools"))
    with field_errors("parallel_tool_calls"):
        parallel = body.get("parallel_tool_calls")
        parallel = parallel is None or check_bool("parallel_tool_calls", parallel)
    with field_errors("tool_choice"):
        choice, allowed = _choice(body.get("tool_choice"), [each.name for each in tools])
    if not tools:
        return None
    # A tool that is named alone is called once, as in OpenAI's API.
    is_named = isinstance(body.get("tool_choice"), dict) and body["tool_choice"].get("type") == "function"
    return ToolRequest(tools, choice, parallel and not is_named, allowed)


def _tools(value: Any) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or len(value) > MAX_TOOLS:
        raise BadInputError(
            f"invalid tools {shown(value)}",
            expected=f"a list of at most {MAX_TOOLS} tools",
            remedy="correct tools",
        )
    tools = tuple(_tool(number, each) for number, each in enumerate(value))
    names = [each.name for each in tools]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise BadInputError(f"two tools are named {double}", expected="different names", remedy="rename one of them")
    return tools


def _tool(number: int, value: Any) -> Tool:
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict):
        raise BadInputError(f"tool {number} (counted from 0) is {shown(value)}", **_TOOL_FORM)
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadInputError(
            f"tool {number} (counted from 0) has the name {shown(name)}",
            expected="1 to 64 letters, digits, underscores, dots and hyphens",
            remedy="rename the tool",
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise BadInputError(f"tool {name} has the parameters {shown(parameters)}", **_TOOL_FORM)
    if parameters is not None and parameters.get("type", "object") != "object":
        raise BadInputError(
            f"parameters of tool {name} have the type {shown(parameters['type'])}",
            expected='a JSON schema of type "object"',
            remedy="correct the schema",
        )
    strict = function.get("strict")
    return Tool(name, _object_schema(parameters), strict is not None and check_bool("strict", strict), value)


def _object_schema(parameters: dict[str, Any] | None) -> Mapping[str, Any]:
    """Return a schema that allows objects only, without unnamed properties unless it mentions them."""
    if not parameters:
        return _NO_PARAMETERS
    if "properties" in parameters:
        return {"additionalProperties": False, **parameters, "type": "object"}
    return {**parameters, "type": "object"}


def _choice(value: Any, names: list[str]) -> tuple[Choice, frozenset[str] | None]:
    if value is None:
        return "auto", None
    if isinstance(value, dict) and value.get("type") == "function":
        return "required", frozenset([_chosen_name(value, names)])
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _allowed_tools(value.get("allowed_tools"), names)
    if not isinstance(value, str) or value not in _CHOICES:
        raise BadInputError(f"tool_choice is {shown(value)}", **_CHOICE_FORM)
    if value == "required":
        if not names:
            raise BadInputError(
                "tool_choice is required, but there are no tools",
                expected="at least one tool",
                remedy="add tools, or remove tool_choice",
            )
        return "required", None
    return ("none", None) if value == "none" else ("auto", None)


def _chosen_name(value: Any, names: list[str]) -> str:
    """Return the name in {"type": "function", "function": {"name": NAME}}."""
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in names:
        raise BadInputError(
            f"tool_choice names the tool {shown(name)}",
            expected="one of " + (", ".join(names)[:200] or "the tools, but the request has none"),
            remedy="correct the name",
        )
    return name


def _allowed_tools(value: Any, names: list[str]) -> tuple[Choice, frozenset[str]]:
    mode, tools = (value.get("mode"), value.get("tools")) if isinstance(value, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools or len(tools) > MAX_TOOLS:
        raise BadInputError(f"tool_choice has allowed_tools {shown(value)}", **_CHOICE_FORM)
    return ("required" if mode == "required" else "auto"), frozenset(_chosen_name(each, names) for each in tools)
