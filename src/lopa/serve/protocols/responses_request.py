"""Requests of OpenAI's /v1/responses, read as chats. Nothing is stored. This module does not depend on bundles."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from lopa.runtime.checked_values import shown, wrong_type
from lopa.runtime.errors import BadInputError, FieldError, field_errors
from lopa.serve.openai.body_options import RESPONSES, check_neutral
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.answer_request import request_from_own_fields
from lopa.serve.serve_limits import ServeLimits

NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
}
"""Names of the fields of OpenAI's chats in responses."""
_READ = ("input", "instructions", "max_output_tokens", "text", "include")
"""Fields that chats do not have."""
_LOGPROBS = "message.output_text.logprobs"
_FUNCTION = "function"
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
_ASSISTANT, _REASONING = "assistant", "reasoning_content"
_ROLES = ("user", _ASSISTANT, "system", "developer")
_EXAMPLE = 'e.g. "Hello" or [{"role": "user", "content": "Hello"}]'


def request_from_responses(
    body: Mapping[str, Any], limits: ServeLimits, defaults: Mapping[str, Any] = MappingProxyType({})
) -> AnswerRequest:
    """Return the request in the body of /v1/responses. Raises FieldError for an invalid field."""
    return request_from_own_fields(body, _fields_of_chat(body), NAMES, RESPONSES, limits, defaults, _READ)


def _fields_of_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    if _LOGPROBS in str(body.get("include")):
        check_neutral("include", _LOGPROBS, ())
    made: dict[str, Any] = {}
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise FieldError(
            "instructions", f"instructions is {shown(instructions)}", expected="a text", remedy="send a text"
        )
    with field_errors("input"):
        messages = _messages(body.get("input"))
    made["messages"] = [*([{"role": "system", "content": instructions}] if instructions else []), *messages]
    if body.get("max_output_tokens") is not None:
        made["max_tokens"] = body["max_output_tokens"]
    with field_errors("tools"):
        made["tools"] = _tools(body.get("tools"))
    made["tool_choice"] = _tool_choice(body.get("tool_choice"))
    with field_errors("text"):
        made |= _text_format(body.get("text"))
    return made


def _messages(value: Any) -> list[dict[str, Any]]:
    """Return the messages of the input."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        expected = "a text or a list of items"
        raise BadInputError(wrong_type("input", value, expected), expected=expected, remedy=_EXAMPLE)
    return _joined_turns(_message(item, f"item {number} (counted from 0)") for number, item in enumerate(value))


def _message(item: Any, where: str) -> dict[str, Any]:
    """Return one item as a message. Reasoning and calls are parts of an assistant's message."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message" and item.get("role") in _ROLES:
        return {"role": item["role"], "content": _content(item.get("content"), where)}
    if kind == "function_call":
        return {"role": _ASSISTANT, "tool_calls": [_call(item, where)]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"), where)}
    if kind == "reasoning":
        return {"role": _ASSISTANT, _REASONING: _content(item.get("content") or item.get("summary") or "", where)}
    raise BadInputError(
        f"{where} of the input is {shown(item)}",
        expected="a message, function_call, function_call_output or reasoning",
        remedy="remove the item",
    )


def _joined_turns(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the parts of one turn in one message: reasoning, then text, then calls."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        turn = joined[-1] if joined and message["role"] == joined[-1]["role"] == _ASSISTANT else None
        if turn is None or (turn.keys() & {"content", "tool_calls"} and "tool_calls" not in message):
            joined.append(message)
        elif "tool_calls" in message:
            turn["tool_calls"] = turn.get("tool_calls", []) + message["tool_calls"]
        else:
            turn.update(message)
    return [{"content": "", **message} for message in joined]


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    texts: list[str] = []
    for part in value if isinstance(value, list) else [value]:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS or not isinstance(text, str):
            raise BadInputError(
                f"{where} of the input has the part {shown(part)}",
                expected='{"type": "input_text", "text": STRING}, since the model reads text only',
                remedy="remove the part",
            )
        texts.append(text)
    return "".join(texts)


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, number, arguments = item.get("name"), item.get("call_id"), item.get("arguments")
    if not isinstance(name, str) or not isinstance(number, str) or not isinstance(arguments, str):
        raise BadInputError(
            f"{where} of the input is {shown(item)}",
            expected='a function_call with texts in "call_id", "name" and "arguments"',
            remedy="correct the item",
        )
    return {"id": number, "type": _FUNCTION, "function": {"name": name, "arguments": arguments}}


def _tools(value: Any) -> Any:
    """Return the functions among the tools. Clients offer tools that a server may lack, such as web_search."""
    if not isinstance(value, list):
        return value
    return [_tool(each) for each in value if not isinstance(each, dict) or each.get("type") == _FUNCTION]


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    names = ("name", "description", "parameters", "strict")
    return {"type": _FUNCTION, _FUNCTION: {name: tool[name] for name in names if tool.get(name) is not None}}


def _tool_choice(value: Any) -> Any:
    """Return the choice in the form of chats, which have the name one level deeper."""
    if not isinstance(value, dict):
        return value
    if value.get("type") == _FUNCTION:
        return {"type": _FUNCTION, _FUNCTION: {"name": value.get("name")}}
    if value.get("type") == "allowed_tools" and isinstance(value.get("tools"), list):
        return {
            "type": "allowed_tools",
            "allowed_tools": {"mode": value.get("mode"), "tools": [_tool_choice(each) for each in value["tools"]]},
        }
    return value


def _text_format(value: Any) -> dict[str, Any]:
    form = value.get("format") if isinstance(value, dict) else None
    if value is not None and not isinstance(value, dict):
        raise BadInputError(f"text is {shown(value)}", expected="an object with a format", remedy="correct text")
    if form is None:
        return {}
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {name: each for name, each in form.items() if name != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": form}
