"""Anthropic's /v1/messages with Anthropic's own client, which validates every field of answers and events."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import CITY, NOTHING
from tests.serve.servers import Server

from lopa.runtime import Decoder

anthropic = pytest.importorskip("anthropic")
pytest.importorskip("llguidance")
CHAT: list[Any] = [{"role": "user", "content": "There are 9 baskets, and each holds 6 candies. How many candies?"}]
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "Weather of a city", "input_schema": CITY},
    {"name": "now", "input_schema": NOTHING},
]


@pytest.fixture
def client(tool_server: Server) -> Iterator[Any]:
    with tool_server.strict_client("Anthropic") as made:
        yield made


@pytest.fixture
def thinking(reasoning_server: Server) -> Iterator[Any]:
    with reasoning_server.strict_client("Anthropic") as made:
        yield made


def _create(client: Any, **fields: Any) -> Any:
    return client.messages.create(**{"model": "tiny", "max_tokens": 120, "messages": CHAT, **fields})


def _streamed(client: Any, **fields: Any) -> tuple[list[Any], Any]:
    """Return all events of a stream, and the message that the client makes of them."""
    with client.messages.stream(**{"model": "tiny", "max_tokens": 120, "messages": CHAT, **fields}) as stream:
        events = list(stream)
        return events, stream.get_final_message()


def _content(message: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.to_dict().items() if name != "id"} for each in message.content]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief.", "extra_body": {"temperature": 1.0, "lopa": {"seed": 3}}},
        {"tools": TOOLS, "tool_choice": {"type": "any"}},
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}},
        {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"tools": TOOLS, "tool_choice": {"type": "none"}},
        {"max_tokens": 3},
    ],
    ids=lambda value: str(value)[:60],
)
def test_whole_and_streamed_messages_are_equal(client: Any, fields: dict[str, Any]) -> None:
    whole = _create(client, **fields)
    events, streamed = _streamed(client, **fields)
    assert _content(streamed) == _content(whole)
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [each.type for each in events]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert whole.content
    if (fields.get("tool_choice") or {}).get("type") in ("any", "tool"):
        assert whole.stop_reason == "tool_use"
        calls = [each for each in whole.content if each.type == "tool_use"]
        assert calls
        assert len({each.id for each in calls}) == len(calls)
        assert {each.type for each in whole.content} <= {"thinking", "tool_use"}
        assert all(isinstance(each.input, dict) for each in calls)
    if fields.get("max_tokens") == 3:
        assert whole.stop_reason == "max_tokens"
    usage = whole.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == _count(client, **fields)


def _count(client: Any, **fields: Any) -> int:
    kept = {name: value for name, value in fields.items() if name in ("system", "tools", "tool_choice")}
    counted: int = client.messages.count_tokens(model="tiny", messages=CHAT, **kept).input_tokens
    return counted


def test_thinking_is_a_block_of_its_own(thinking: Any) -> None:
    budget = {"type": "enabled", "budget_tokens": 8}
    whole = _create(thinking, thinking=budget)
    assert [each.type for each in whole.content] == ["thinking", "text"]
    events, streamed = _streamed(thinking, thinking=budget)
    assert _content(streamed) == _content(whole)
    assert streamed.content[0].signature
    assert [each.index for each in events if each.type == "content_block_stop"] == [0, 1]
    off = _create(thinking, thinking={"type": "disabled"})
    assert [each.type for each in off.content] == ["text"]
    for by_others in ({"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert _create(thinking, extra_body=by_others).content == off.content
    counted = thinking.messages.count_tokens(
        model="tiny", messages=CHAT, thinking={"type": "enabled", "budget_tokens": 4096}
    )
    assert counted.input_tokens == whole.usage.input_tokens
    history = [*CHAT, {"role": "assistant", "content": [each.to_dict() for each in whole.content]}, *CHAT]
    assert _create(thinking, messages=history).content


def test_calls_and_results_go_back_as_they_came(client: Any) -> None:
    messages = list(CHAT)
    for turn in range(4):
        choice = {"type": "any" if turn % 2 == 0 else "auto"}
        answer = _create(client, messages=messages, tools=TOOLS, tool_choice=choice, extra_body={"temperature": 0.7})
        messages.append({"role": "assistant", "content": [each.to_dict() for each in answer.content]})
        results = [
            {
                "type": "tool_result",
                "tool_use_id": each.id,
                "content": [{"type": "text", "text": "7 C"}],
                "is_error": False,
            }
            for each in answer.content
            if each.type == "tool_use"
        ]
        assert results or turn % 2
        messages.append({"role": "user", "content": [*results[::-1], {"type": "text", "text": "And now?"}]})


def test_a_last_message_of_the_assistant_is_continued(thinking: Any, text_bundle: Path) -> None:
    begun = "Answer: 9 x"
    fields: dict[str, Any] = {"messages": [*CHAT, {"role": "assistant", "content": begun}], "max_tokens": 40}
    with Decoder.open(text_bundle, threads=1) as decoder:
        ids = decoder.tokenizer.chat(CHAT) + decoder.tokenizer.encode(begun, add_bos=False)
        expected = decoder.generate(ids, max_new_tokens=40)
    message = _create(thinking, **fields)
    assert (message.content[0].text, message.usage.input_tokens) == (expected.text, len(ids))
    del fields["max_tokens"]
    assert thinking.messages.count_tokens(model="tiny", **fields).input_tokens == len(ids)
    thought = {"type": "thinking", "thinking": "hm", "signature": "unsigned"}
    schema = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    for changed in (
        {**fields, "output_config": schema},
        {"messages": [*CHAT, {"role": "assistant", "content": [thought, {"type": "text", "text": begun}]}]},
    ):
        with pytest.raises(anthropic.BadRequestError, match="cannot be continued"):
            _create(thinking, **changed)


def test_a_stop_sequence_is_named(thinking: Any) -> None:
    text = _create(thinking).content[0].text
    stop = text[len(text) // 2 :][:4]
    answer = _create(thinking, stop_sequences=["never written", stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert answer.content[0].text == text[: text.index(stop)]
    events, streamed = _streamed(thinking, stop_sequences=["never written", stop])
    assert (streamed.stop_reason, streamed.stop_sequence) == ("stop_sequence", stop)
    assert events


def test_structured_output(thinking: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    answer = _create(thinking, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert 0 <= json.loads(answer.content[0].text)["n"] <= 9


@pytest.mark.parametrize(
    ("invalid", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages"),
        ({"system": 5}, "system"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
        ({"stop_sequences": "x" * 5000}, "stop_sequences"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_errors_have_anthropic_s_form(reasoning_server: Server, invalid: dict[str, Any], field: str) -> None:
    body = {"model": "tiny", "max_tokens": 50, "messages": CHAT, **invalid}
    answer = reasoning_server.http.post("/v1/messages", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert error["error"]["message"].startswith(f"{field}: "), error
    assert error["request_id"]


def test_threads_are_refused_by_the_code_that_clients_know(reasoning_server: Server, thinking: Any) -> None:
    """Check that no client believes this server to hold the conversation: its next request would lack the history."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        with pytest.raises(anthropic.BadRequestError) as refused:
            thinking.beta.messages.create(model="tiny", max_tokens=20, messages=CHAT, thread=thread)
        error = refused.value.body["error"]
        assert error["details"] == {"error_code": "thread_unsupported_request"}
        assert error["message"].startswith("thread: ")
    assert thinking.beta.messages.create(model="tiny", max_tokens=20, messages=CHAT, thread=None).content


def test_other_errors(reasoning_server: Server, thinking: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        _create(thinking, model="other")
    answer = reasoning_server.http.post("/v1/messages", content=b"{")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert reasoning_server.http.get("/v1/messages").json()["type"] == "error"
