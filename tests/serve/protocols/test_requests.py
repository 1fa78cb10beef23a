"""Bodies of messages and responses, read as chats."""

import json
from typing import Any

import pytest

from lopa.serve.openai.field_error import FieldError
from lopa.serve.protocols.messages_request import fields_from_messages, request_from_messages
from lopa.serve.protocols.responses_request import request_from_responses
from lopa.serve.serve_limits import ServeLimits

_LIMITS = ServeLimits()


def _responses(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return request_from_responses({"model": "m", "input": given, **fields}, _LIMITS).messages


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
    found = request_from_messages(body, _LIMITS).messages
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
        ({"stop_sequences": ["a"]}, {"stop": ["a"]}),
        ({"metadata": {"user_id": "x"}, "service_tier": "auto", "anthropic_beta": ["x"]}, {}),
    ],
)
def test_fields_of_messages(given: dict[str, Any], expected: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}]}
    made = fields_from_messages({**body, **given})
    assert {name: value for name, value in made.items() if name not in body and value is not None} == expected


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
