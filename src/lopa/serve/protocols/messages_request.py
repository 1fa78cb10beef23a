"""Requests of Anthropic's /v1/messages, read as OpenAI chats. This module does not depend on bundles."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from lopa.runtime.checked_values import check_bool, check_int, shown, wrong_type
from lopa.runtime.errors import BadInputError, FieldError, field_errors
from lopa.runtime.options import MAX_POSITIONS
from lopa.serve.openai.body_options import MESSAGES
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.answer_request import request_from_own_fields
from lopa.serve.serve_limits import ServeLimits

NAMES: Mapping[str, str] = {
    "stop": "stop_sequences",
    "response_format": "output_config",
    "thinking_token_budget": "thinking",
    "reasoning_effort": "thinking",
    "reasoning": "output_config",
    "parallel_tool_calls": "tool_choice",
}
"""Anthropic's names of the fields of OpenAI's chats."""
_READ = ("system", "stop_sequences", "output_config", "thinking")
"""Fields that chats do not have, or have with other values."""
_BILLING = "x-anthropic-billing-header"
"""Beginning of a system block that some clients add. Its hash differs in every request, so that no prefix is equal."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ROLES = ("user", "assistant")
_EXAMPLE = 'e.g. {"role": "user", "content": "Hello"}'


def request_from_messages(
    body: Mapping[str, Any], limits: ServeLimits, defaults: Mapping[str, Any] = MappingProxyType({})
) -> AnswerRequest:
    """Return the request in the body of /v1/messages. Raises FieldError for an invalid field, in the client's names."""
    if body.get("max_tokens") is None:
        raise FieldError(
            "max_tokens",
            "max_tokens is missing",
            expected="a number of tokens",
            remedy="add it, as Anthropic's API requires",
        )
    return request_from_own_fields(body, fields_from_messages(body), NAMES, MESSAGES, limits, defaults, _READ)


def fields_from_messages(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a chat that Anthropic's own stand for. Fields that would change the answer are errors."""
    made: dict[str, Any] = {}
    if body.get("thread") is not None:
        # By this code Anthropic's clients know that they must send the whole history in each request.
        code = "thread_unsupported_request"
        raise FieldError("thread", "thread is not supported", expected="no such field", remedy="remove it", code=code)
    with field_errors("system"):
        system = _system(body.get("system"))
    with field_errors("messages"):
        made["messages"] = [*system, *_messages(body.get("messages"))]
    with field_errors("tools"):
        made["tools"] = _tools(body.get("tools"))
    with field_errors("tool_choice"):
        made |= _tool_choice(body.get("tool_choice"))
    with field_errors("output_config"):
        made |= _output_config(body.get("output_config"))
    with field_errors("thinking"):
        made |= _thinking(body.get("thinking"), body.get("max_tokens"))
    if body.get("stop_sequences") is not None:
        made["stop"] = body["stop_sequences"]
    return made


def _system(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    parts = [value] if isinstance(value, str) else _texts(value, "system")
    text = "\n\n".join(part for part in parts if not part.startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def _texts(blocks: Any, where: str) -> list[str]:
    """Return the texts of blocks of text."""
    if not isinstance(blocks, list):
        raise BadInputError(
            f"{where} is {shown(blocks)}", expected="a text or a list of blocks of text", remedy="send text"
        )
    return [_text(each, where) for each in blocks]


def _text(block: Any, where: str) -> str:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    if not isinstance(text, str):
        raise BadInputError(
            f"{where} has the block {shown(block)}",
            expected='{"type": "text", "text": STRING}, since the model reads text only',
            remedy="remove the block",
        )
    return text


def _messages(value: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        expected = "a non-empty list of messages"
        raise BadInputError(wrong_type("messages", value, expected), expected=expected, remedy=_EXAMPLE)
    for number, message in enumerate(value):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role not in _ROLES or not isinstance(content, str | list):
            raise BadInputError(
                f"message {number} (counted from 0) is {shown(message)}",
                expected="a role among user and assistant, and a content of text or blocks",
                remedy=_EXAMPLE,
            )
        where = f"message {number} (counted from 0)"
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        yield from _assistant(blocks, where) if role == "assistant" else _user(blocks, where)


def _user(blocks: list[Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield the results of tools, then the text of a user's message."""
    results = [each for each in blocks if isinstance(each, dict) and each.get("type") == "tool_result"]
    for block in results:
        content = block.get("content")
        parts = [content] if isinstance(content, str) else [] if content is None else _texts(content, where)
        text = "".join(parts)
        failed = block.get("is_error") is not None and check_bool("is_error", block["is_error"])
        name = block.get("tool_use_id")
        if not isinstance(name, str):
            raise BadInputError(
                f"{where} has a tool_result with the tool_use_id {shown(name)}",
                expected="the id of a tool_use",
                remedy="add it",
            )
        yield {"role": "tool", "tool_call_id": name, "content": f"Error: {text}" if failed else text}
    texts = [_text(each, where) for each in blocks if each not in results]
    if texts or not results:
        yield {"role": "user", "content": "".join(texts)}


def _assistant(blocks: list[Any], where: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            calls.append(_call(block, where))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind != "redacted_thinking":
            texts.append(_text(block, where))
    made: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        made["reasoning_content"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    yield made


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    name, number, given = block.get("name"), block.get("id"), block.get("input")
    if not isinstance(name, str) or not isinstance(number, str) or not isinstance(given, dict):
        raise BadInputError(
            f"{where} has the block {shown(block)}",
            expected='{"type": "tool_use", "id": STRING, "name": STRING, "input": OBJECT}',
            remedy="correct the block",
        )
    arguments = msgspec.json.encode(given).decode()
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tools(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [_tool(number, each) for number, each in enumerate(value)]


def _tool(number: int, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type", "custom") not in (None, "custom"):
        raise BadInputError(
            f"tool {number} (counted from 0) is {shown(tool)}",
            expected="a tool with a name and an input_schema, since this server runs no tools of Anthropic",
            remedy="remove the tool",
        )
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema"), "strict": tool.get("strict")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    return {"type": "function", "function": {name: each for name, each in function.items() if each is not None}}


def _tool_choice(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "tool":
        made: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": value.get("name")}}}
    elif isinstance(kind, str) and kind in _CHOICES:
        made = {"tool_choice": _CHOICES[kind]}
    else:
        raise BadInputError(
            f"tool_choice is {shown(value)}",
            expected="an object with the type auto, any, none, or tool with a name",
            remedy="correct tool_choice",
        )
    if value.get("disable_parallel_tool_use") is not None:
        made["parallel_tool_calls"] = not check_bool("disable_parallel_tool_use", value["disable_parallel_tool_use"])
    return made


def _thinking(value: Any, max_tokens: Any) -> dict[str, Any]:
    if value is None:
        return {}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "disabled":
        return {"reasoning_effort": "none", "reasoning": None}
    if kind == "adaptive":
        return {}
    if kind != "enabled":
        raise BadInputError(
            f"thinking is {shown(value)}",
            expected='{"type": "enabled", "budget_tokens": NUMBER}, or the type disabled or adaptive',
            remedy="correct thinking",
        )
    budget = check_int("thinking.budget_tokens", value.get("budget_tokens"), min=1, max=MAX_POSITIONS)
    if isinstance(max_tokens, int) and budget >= max_tokens:
        raise BadInputError(
            f"thinking.budget_tokens is {budget} and max_tokens is {max_tokens}",
            expected="fewer tokens for thinking than for the whole answer",
            remedy="raise max_tokens or reduce budget_tokens",
        )
    return {"thinking_token_budget": budget, "reasoning_effort": "high"}


def _output_config(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    form = value.get("format") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not (form is None or isinstance(form, dict)):
        raise BadInputError(
            f"output_config is {shown(value)}",
            expected='an object with a format {"type": "json_schema", "schema": OBJECT}',
            remedy="correct output_config",
        )
    made = {} if value.get("effort") is None else {"reasoning": {"effort": value["effort"]}}
    if form is None:
        return made
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise BadInputError(
            f"output_config has the format {shown(form)}",
            expected='{"type": "json_schema", "schema": OBJECT}',
            remedy="correct the format",
        )
    schema = {"name": "answer", "schema": form["schema"]}
    return {**made, "response_format": {"type": "json_schema", "json_schema": schema}}
