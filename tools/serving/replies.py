"""Complete replies of all endpoints in one form, so that they can be compared with a decoder's answers.

A choice is a dict with "index", "text", "finish_reason" (OpenAI's) and LOPA_FIELD, and with "reasoning" and "calls"
(lists of name and arguments) if it has any. /v1/messages adds "stop_sequence".
"""

import json
from collections.abc import Mapping
from typing import Any

from lopa.serve.openai.body_options import LOPA_FIELD, MESSAGES, RESPONSES

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
"""OpenAI's finish_reason by Anthropic's stop_reason."""


def choices_of_reply(path: str, reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of a reply that is not streamed, by the endpoint `path`."""
    if path == MESSAGES:
        return [_choice_of_message(reply)]
    if path == RESPONSES:
        return [_choice_of_response(reply)]
    return [_choice_of_openai(choice) for choice in reply["choices"]]


def choice_with_parts(fields: Mapping[str, Any], text: str, reasoning: str, calls: list[list[str]]) -> dict[str, Any]:
    """Return a choice with its parts. Parts that it lacks are left out."""
    found = {**fields, "text": text}
    return found | ({"reasoning": reasoning} if reasoning else {}) | ({"calls": calls} if calls else {})


def sorted_arguments(arguments: str) -> str:
    """Return the arguments of a call in the form in which Anthropic's objects are compared."""
    return json.dumps(json.loads(arguments), sort_keys=True)


def _choice_of_openai(choice: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: choice[name] for name in ("index", "finish_reason", LOPA_FIELD)}
    if "message" not in choice:
        return {**fields, "text": choice["text"]}
    message = choice["message"]
    calls = [[each["function"]["name"], each["function"]["arguments"]] for each in message.get("tool_calls", ())]
    return choice_with_parts(fields, message["content"] or "", message.get("reasoning_content", ""), calls)


def _choice_of_message(message: Mapping[str, Any]) -> dict[str, Any]:
    blocks = message["content"]
    text, reasoning = ("".join(each[kind] for each in blocks if each["type"] == kind) for kind in ("text", "thinking"))
    calls = [[each["name"], json.dumps(each["input"], sort_keys=True)] for each in blocks if each["type"] == "tool_use"]
    fields = {
        "index": 0,
        "finish_reason": _FINISH[message["stop_reason"]],
        "stop_sequence": message["stop_sequence"],
        LOPA_FIELD: message[LOPA_FIELD],
    }
    return choice_with_parts(fields, text, reasoning, calls)


def _choice_of_response(response: Mapping[str, Any]) -> dict[str, Any]:
    items = response["output"]
    text, reasoning = (
        "".join(part["text"] for each in items if each["type"] == kind for part in each["content"])
        for kind in ("message", "reasoning")
    )
    calls = [[each["name"], each["arguments"]] for each in items if each["type"] == "function_call"]
    finish = "length" if response["status"] == "incomplete" else "tool_calls" if calls else "stop"
    fields = {"index": 0, "finish_reason": finish, LOPA_FIELD: response[LOPA_FIELD]}
    return choice_with_parts(fields, text, reasoning, calls)
