"""Bodies of messages and responses, read as chats."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from lopa.runtime.errors import FieldError
from lopa.serve.openai.body_options import CHATS
from lopa.serve.openai.foreign_options import NEUTRAL
from lopa.serve.openai.request import CHAT_FIELDS, AnswerRequest, request_from_body
from lopa.serve.protocols.messages_request import fields_from_messages, request_from_messages
from lopa.serve.protocols.responses_request import request_from_responses
from lopa.serve.serve_limits import ServeLimits

_LIMITS = ServeLimits()


def _messages(requested: AnswerRequest) -> list[dict[str, Any]]:
    assert requested.chat is not None
    return [dict(each) for each in requested.chat.messages]


def _responses(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return _messages(request_from_responses({"model": "m", "input": given, **fields}, _LIMITS))


def _call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def test_the_items_of_a_turn_are_one_message() -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": []}]},
        _call("1"),
        _call("2"),
        {"type": "function_call_output", "call_id": "2", "output": "y"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        _call("3"),
        {"type": "function_call_output", "call_id": "3", "output": "z"},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    found = _responses(items, instructions="be brief")
    assert [(each["role"], each["content"]) for each in found] == [
        ("system", "be brief"),
        ("user", "a"),
        ("assistant", "b"),
        ("tool", "x"),
        ("tool", "y"),
        ("assistant", ""),
        ("tool", "z"),
        ("assistant", "c"),
        ("assistant", "d"),
    ]
    assert [call["id"] for call in found[2]["tool_calls"]] == ["1", "2"]
    assert (found[2]["reasoning_content"], found[5]["reasoning_content"]) == ("hm", "so")


def test_blocks_of_a_message_become_messages() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "x-anthropic-billing-header: 1"}],
        "messages": [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "b"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"n": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "and"},
                    {"type": "tool_result", "tool_use_id": "1", "content": "no", "is_error": True},
                ],
            },
        ],
    }
    found = _messages(request_from_messages(body, _LIMITS))
    assert [(each["role"], each["content"]) for each in found] == [
        ("system", "a"),
        ("user", "q"),
        ("assistant", "b"),
        ("tool", "Error: no"),
        ("user", "and"),
    ]
    assert found[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"n": 1}}
    assert found[2]["reasoning_content"] == "hm"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}}, {}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 5}},
            {"reasoning_effort": "high", "thinking_token_budget": 5},
        ),
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
        ({"metadata": {"user_id": "x"}, "service_tier": "auto", "anthropic_beta": ["x"]}, {}),
    ],
)
def test_fields_of_messages(given: dict[str, Any], expected: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
    made = fields_from_messages({**body, **given})
    assert {name: value for name, value in made.items() if name not in body and value is not None} == expected


_MESSAGE = {"role": "user", "content": "q"}
_READ: dict[str, Callable[..., AnswerRequest]] = {
    "chats": lambda **fields: request_from_body({"model": "m", "messages": [_MESSAGE], **fields}, CHATS, _LIMITS),
    "messages": lambda **fields: request_from_messages(
        {"model": "m", "max_tokens": 9, "messages": [_MESSAGE], **fields}, _LIMITS
    ),
    "responses": lambda **fields: request_from_responses({"model": "m", "input": [_MESSAGE], **fields}, _LIMITS),
}
_OTHERS = ["messages", "responses"]


@pytest.mark.parametrize("name", _OTHERS)
@pytest.mark.parametrize(
    ("fields", "option", "value"),
    [
        ({"seed": 5}, "seed", 5),
        ({"stop": ["a"]}, "stop", ["a"]),
        ({"ignore_eos": True}, "stop_at_eos", False),
        ({"structured_outputs": {"regex": "[0-9]"}}, "regex", "[0-9]"),
        ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}),
        ({"thinking_token_budget": 4}, "reasoning_budget", 4),
    ],
)
def test_fields_of_chats_are_read_by_every_protocol(name: str, fields: dict[str, Any], option: str, value: Any) -> None:
    found = _READ[name](**fields)
    assert (found.options.values[option], found.options.params[option]) == (value, next(iter(fields)))


@pytest.mark.parametrize("name", _READ)
@pytest.mark.parametrize("field", sorted({*NEUTRAL} - {*CHAT_FIELDS, "n", "stream"}))
def test_fields_without_an_equivalent_are_refused_by_every_protocol(name: str, field: str) -> None:
    for value in (None, *NEUTRAL.get(field, ())):
        assert _messages(_READ[name](**{field: value})) == [_MESSAGE]
    with pytest.raises(FieldError, match="is not supported") as error:
        _READ[name](**{field: "something else"})
    assert error.value.param == field


@pytest.mark.parametrize("name", _OTHERS)
@pytest.mark.parametrize(
    ("field", "value", "neutral"),
    [("n", 2, 1), ("logprobs", True, False), ("top_logprobs", 2, 0), ("max_completion_tokens", 5, None)],
)
def test_what_a_reply_cannot_show_is_refused(name: str, field: str, value: Any, neutral: Any) -> None:
    assert _READ[name](**{field: neutral}).copies == 1
    with pytest.raises(FieldError) as error:
        _READ[name](**{field: value})
    assert error.value.param == field
    if "logprobs" in field:
        with pytest.raises(FieldError) as error:
            _READ[name](lopa={field: value})
        assert error.value.param == f"lopa.{field}"


def test_log_probabilities_of_responses_are_refused_by_name() -> None:
    others = ["reasoning.encrypted_content", "web_search_call.action.sources"]
    for given in (None, [], others):
        assert _messages(_READ["responses"](include=given)) == [_MESSAGE]
    with pytest.raises(FieldError, match="use /v1/chat/completions with logprobs") as error:
        _READ["responses"](include=[*others, "message.output_text.logprobs"])
    assert error.value.param == "include"


@pytest.mark.parametrize(
    ("name", "fields", "param"),
    [
        ("responses", {"max_output_tokens": 9, "max_tokens": 5}, "max_tokens"),
        ("responses", {"messages": []}, "messages"),
        (
            "responses",
            {"text": {"format": {"type": "text"}}, "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ("responses", {"reasoning": {"effort": "none"}, "reasoning_effort": "low"}, "reasoning"),
        ("responses", {"previous_input_messages": [_MESSAGE]}, "previous_input_messages"),
        ("messages", {"stop_sequences": ["a"], "stop": ["b"]}, "stop"),
        ("messages", {"thinking": {"type": "disabled"}, "reasoning_effort": "low"}, "reasoning_effort"),
        ("messages", {"output_config": {"effort": "huge"}}, "output_config"),
        ("messages", {"output_config": {"effort": "low"}, "reasoning": {"effort": "none"}}, "reasoning"),
        ("chats", {"enable_thinking": False, "thinking": {"type": "enabled"}}, "enable_thinking"),
    ],
)
def test_contradictions_are_refused(name: str, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as error:
        _READ[name](**fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("name", "fields", "reasons"),
    [
        ("chats", {"enable_thinking": False}, False),
        ("chats", {"enable_thinking": True, "reasoning_effort": "low"}, True),
        ("chats", {"thinking": {"type": "disabled"}}, False),
        ("chats", {"thinking": {"type": "adaptive"}}, None),
        ("chats", {"reasoning": {"enabled": True, "exclude": False, "max_tokens": None}}, None),
        ("responses", {"reasoning": {"effort": "medium", "summary": "auto"}}, True),
        ("responses", {"reasoning": {"effort": "none"}}, False),
        ("messages", {"output_config": {"effort": "low"}}, True),
        ("messages", {"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}}, False),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 5}, "output_config": {"effort": "max"}}, True),
    ],
)
def test_reasoning_is_switched_by_the_names_of_several_servers(
    name: str, fields: dict[str, Any], reasons: bool | None
) -> None:
    chat = _READ[name](**fields).chat
    assert chat is not None
    assert chat.reasoning is reasons


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enable_thinking", "false"),
        ("thinking", True),
        ("thinking", {"type": "enabled", "budget_tokens": 5}),
        ("reasoning", {"exclude": True}),
        ("reasoning", {"enabled": False}),
    ],
)
def test_switches_of_reasoning_that_cannot_be_used(field: str, value: Any) -> None:
    with pytest.raises(FieldError) as error:
        _READ["chats"](**{field: value})
    assert error.value.param == field


def test_fields_that_clients_add_are_accepted() -> None:
    common = {"metadata": {}, "store": True, "user": "u", "service_tier": "auto", "parallel_tool_calls": True}
    messages = {
        "betas": ["x"],
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "cache_control": {"type": "ephemeral"},
        "inference_geo": "us",
        "speed": "standard",
        "fallbacks": [],
        "mcp_servers": None,
    }
    responses = {
        "client_metadata": {"x": "y"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "key",
        "safety_identifier": "s",
        "text": {"verbosity": "low"},
        "truncation": "disabled",
        "background": False,
        "max_tool_calls": 3,
        "top_logprobs": 0,
    }
    chats = {"verbosity": "low", "prediction": {"type": "content", "content": "x"}, "session_id": "s", "chat_id": "c"}
    for name, own in (("messages", messages), ("responses", responses), ("chats", chats)):
        assert _messages(_READ[name](**common, **own)) == [_MESSAGE]


def test_the_salt_of_the_prefix_cache_is_kept() -> None:
    message = {"role": "user", "content": "q"}
    body = {"model": "m", "max_tokens": 9, "cache_salt": "tenant"}
    assert request_from_messages({**body, "messages": [message]}, _LIMITS).cache_salt == "tenant"
    assert request_from_responses({**body, "input": [message]}, _LIMITS).cache_salt == "tenant"


@pytest.mark.parametrize("number", [None, True, "5", 0, 9])
def test_a_budget_below_the_answer_s_length_is_needed(number: Any) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
    with pytest.raises(FieldError) as error:
        request_from_messages({**body, "thinking": {"type": "enabled", "budget_tokens": number}}, _LIMITS)
    assert error.value.param == "thinking"


@pytest.mark.parametrize(
    "item",
    [
        *(None, 5, {}, {"type": "computer_call"}, {"role": "wizard", "content": "x"}, {"role": "user"}),
        *({"role": "user", "content": [5]}, {"type": "function_call", "name": "f"}, {"type": "function_call_output"}),
        {"type": "reasoning", "content": 5},
    ],
)
def test_items_that_are_no_text_are_refused(item: Any) -> None:
    with pytest.raises(FieldError) as error:
        _responses([item])
    assert error.value.param == "input"
    assert json.dumps(error.value.param)
