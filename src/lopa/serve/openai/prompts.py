"""Prompts or chat messages of a body, checked for their form. This module does not depend on tokenizers."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lopa.runtime.checked_values import shown, wrong_type
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.request import Prompt
from lopa.runtime.text.chat_template import text_from_content

_REMEDY = "send the field in this form"
_REASONING = ("reasoning_content", "reasoning")
"""Names of the reasoning in an assistant's message."""


def check_prompt_text(value: object) -> str:
    """Return a prompt that is a string. Raises BadInputError for anything else."""
    if isinstance(value, str):
        return value
    raise BadInputError(wrong_type("prompt", value, "a string"), expected="a string", remedy=_REMEDY)


def check_prompt_ids(value: object) -> list[int]:
    """Return a prompt that is a list of token IDs. The decoder checks their range."""
    if isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return value
    wanted = "a list of integers"
    raise BadInputError(wrong_type("prompt", value, wanted), expected=wanted, remedy=_REMEDY)


def prompts_from_field(value: object, *, max_prompts: int) -> list[Prompt]:
    """Return from 1 to `max_prompts` prompts from a string, a list of strings, a list of token IDs or a list of such
    lists."""
    is_list = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    given: list[Any] = value if isinstance(value, list) and is_list else [value]
    if len(given) > max_prompts:
        raise BadInputError(
            f"{len(given)} prompts in one request",
            expected=f"at most {max_prompts}",
            remedy="split them into several requests",
        )
    return [check_prompt_ids(each) if isinstance(each, list) else check_prompt_text(each) for each in given]


def messages_from_field(value: object) -> list[dict[str, Any]]:
    """Return a chat in the form that templates expect, from the form that OpenAI's clients send. Chat checks the rest.

    Results of tools get the order of their calls, and the role developer becomes system. Null fields are removed,
    except for the content of messages with tool calls. The arguments of a call arrive as the text of a JSON object and
    become that object. An empty text becomes an empty object, and any other text stays text. Raises BadInputError for
    anything but a list of objects.
    """
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadInputError(
            wrong_type("messages", value, "a list of objects"),
            expected='a list of {"role": string, "content": string}',
            remedy=_REMEDY,
        )
    return [
        {
            name: _plain_value(name, value)
            for name, value in {**each, **_reasoning(each)}.items()
            if value is not None or (name == "content" and each.get("tool_calls"))
        }
        for each in order_tool_results(value)
    ]


def _reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reasoning of a message under both of its names, since templates read either."""
    found = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return {} if found is None else dict.fromkeys(_REASONING, found)


def _plain_value(name: str, value: Any) -> Any:
    if name == "tool_calls" and isinstance(value, list):
        return [_plain_call(call) for call in value]
    if name == "role" and value == "developer":
        return "system"
    return text_from_content(value) if name == "content" else value


def _plain_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(value: Any) -> Any:
    if value is None or value == "":
        return {}
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) else value
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return value  # truncated arguments stay text; the template may reject them
    return found if isinstance(found, dict) else value


_TOOL = "tool"


def order_tool_results(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the results behind a message in the order of its calls.

    Results without a `tool_call_id` stay where they are. Raises BadInputError for a result whose id belongs to no call
    of the assistant's message before it, and for a second result of one call.
    """
    ordered: list[dict[str, Any]] = []
    position = 0
    while position < len(messages):
        end = position
        while end < len(messages) and messages[end].get("role") == _TOOL:
            end += 1
        if end > position:
            before = messages[position - 1] if position else {}
            ordered += _in_order(messages[position:end], _call_ids(before), position)
            position = end
        else:
            ordered.append(dict(messages[position]))
            position += 1
    return ordered


def _call_ids(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    return [each.get("id") for each in calls if isinstance(each, Mapping)] if isinstance(calls, list) else []


def _in_order(results: Sequence[Mapping[str, Any]], ids: list[Any], number: int) -> list[dict[str, Any]]:
    places: dict[int, dict[str, Any]] = {}
    for offset, result in enumerate(results):
        name = result.get("tool_call_id")
        if name is None:
            return [dict(each) for each in results]
        # Some clients give equal ids to several calls of a message. Their results then keep their order.
        free = [place for place, each in enumerate(ids) if each == name and place not in places]
        if not free:
            raise BadInputError(
                f"message {number + offset} (counted from 0) has the tool_call_id {shown(name)}",
                expected="the id of a call in the assistant's message before it, with one result for each call",
                remedy="send that message too, or correct the id",
            )
        places[free[0]] = dict(result)
    return [places[place] for place in sorted(places)]
