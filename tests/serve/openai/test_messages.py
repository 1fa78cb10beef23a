"""Chats in the form of OpenAI's clients: tool calls without text, tool results and content parts."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.runtime.text.test_markup import QWEN

from lopa.batch.plain_line import parse_plain_line
from lopa.cli.batch.openai_line import request_from_openai_line
from lopa.runtime.errors import BadInputError
from lopa.serve.openai.prompts import messages_from_field
from lopa.serve.triton.triton_request import _chat


def history(arguments: Any = '{"city": "Oslo", "days": 2}', **fields: Any) -> list[dict[str, Any]]:
    """Return a history as a client sends it: no content, arguments as text, null fields."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "user", "content": [{"type": "text", "text": "And in "}, {"type": "text", "text": "Oslo?"}]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
    ]


RENDERED = (
    "<|im_start|>user\nAnd in Oslo?<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call><|im_end|>\n'
    "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)


def by_openai_batch(messages: list[dict[str, Any]]) -> Any:
    body = {"model": "m", "messages": messages}
    line = {"custom_id": "1", "url": "/v1/chat/completions", "body": body}
    chat: Any = request_from_openai_line(line, "m", {}).chat
    return chat.messages


def by_line(messages: list[dict[str, Any]]) -> Any:
    chat: Any = parse_plain_line({"messages": messages}).prompt
    return chat.messages


ENTRIES: dict[str, Callable[[Any], Any]] = {
    "server": messages_from_field,
    "Triton": lambda messages: _chat(json.dumps(messages)).messages,
    "OpenAI batch file": by_openai_batch,
    "lopa batch file": by_line,
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_tool_calls_reach_the_template(entry: str) -> None:
    sent = history()
    messages = ENTRIES[entry](sent)
    assert QWEN.chat_text(messages) == RENDERED
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {
        "city": "Oslo",
        "days": 2,
    }  # |items needs an object
    assert sent == history()


def test_decoder_accepts_hugging_face_messages() -> None:
    assert QWEN.chat_text(history({"city": "Oslo", "days": 2})) == RENDERED
    without = history({"city": "Oslo", "days": 2})
    del without[1]["content"]
    assert QWEN.chat_text(without) == RENDERED
    assert '"arguments": {"city": "Oslo", "days": 2}' in QWEN.chat_text(
        history()
    )  # as JSON text, in the form of Qwen's template


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        *(("", "{}"), (None, "{}"), ("{}", "{}"), ({"a": 1}, '{"a": 1}'), ('{"a": [1, null]}', '{"a": [1, null]}')),
        *(("{", "{"), ("[1]", "[1]"), ("[" * 5000, "[" * 5000), ('{"a": NaN}', '{"a": NaN}'), ('"x"', '"x"')),
    ],
)
def test_arguments_of_every_form(arguments: Any, shown: str) -> None:
    """Check that truncated arguments reach the template as text, so that the conversation can go on."""
    text = QWEN.chat_text(messages_from_field(history(arguments)))
    assert f'"arguments": {shown}}}\n</tool_call>' in text


@pytest.mark.parametrize("calls", [None, []])
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_neither_content_nor_call_is_rejected(role: str, calls: Any) -> None:
    message = {"role": role, "content": None, "tool_calls": calls}
    with pytest.raises(BadInputError, match="message 0 of the chat"):
        QWEN.chat(messages_from_field([message]))


@pytest.mark.parametrize("part", [{"type": "image_url"}, {"type": "text"}, "x", None, {"type": "text", "text": 1}])
def test_non_text_parts_are_rejected(part: Any) -> None:
    with pytest.raises(BadInputError, match="text only"):
        QWEN.chat([{"role": "user", "content": [part]}])
