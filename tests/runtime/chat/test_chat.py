"""A chat is checked when it is made: an error names its field."""

from typing import Any

import pytest

from lopa.runtime.chat.chat import Chat
from lopa.runtime.chat.prepared_chat import _begun_answer
from lopa.runtime.errors import FieldError

MESSAGES = [{"role": "user", "content": "1 + 1?"}]


@pytest.mark.parametrize(
    ("field", "value", "received", "expected"),
    [
        ("messages", None, "invalid messages None", "a list of 1 to 100000 messages"),
        ("messages", [], "invalid messages []", "a list of 1 to"),
        ("messages", [{"role": "x", "content": "a"}], "unknown role x", "developer"),
        ("messages", [*MESSAGES, {"role": "assistant"}], "message 1", "content"),
        ("reasoning", "none", "invalid reasoning 'none'", "True, False or None"),
        ("chat_template_kwargs", None, "invalid chat_template_kwargs None", "a mapping"),
        ("call_format", "hermes", "invalid call_format 'hermes'", "a CallFormat, or None"),
    ],
)
def test_an_invalid_field_is_named(field: str, value: Any, received: str, expected: str) -> None:
    with pytest.raises(FieldError) as caught:
        Chat(**{"messages": MESSAGES, "continues": True, field: value})
    assert caught.value.param == field
    assert received in caught.value.received
    assert expected in caught.value.expected


@pytest.mark.parametrize(
    "call",
    [
        {"function_call": {"name": "add", "arguments": "{}"}},
        {"content": "I add.", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": "{}"}}]},
    ],
)
def test_a_message_of_calls_begins_no_answer(call: dict[str, Any]) -> None:
    messages = [*MESSAGES, {"role": "assistant", **call}]
    assert _begun_answer(Chat(messages, continues=True)) == (messages, None)
