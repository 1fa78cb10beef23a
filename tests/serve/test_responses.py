"""OpenAI's /v1/responses with OpenAI's own client, which validates every field of answers and events."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chat_bundles import CITY
from tests.serve.servers import Server

pytest.importorskip("llguidance")
QUESTION = "There are 9 baskets, and each holds 6 candies. How many candies?"
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
OTHERS: list[Any] = [{"type": "web_search"}, {"type": "custom", "name": "shell"}]
"""Tools that clients such as Codex offer, and that this server leaves out."""


@pytest.fixture
def client(tool_server: Server) -> Iterator[Any]:
    with tool_server.strict_client("OpenAI") as made:
        yield made


@pytest.fixture
def thinking(reasoning_server: Server) -> Iterator[Any]:
    with reasoning_server.strict_client("OpenAI") as made:
        yield made


def _create(client: Any, **fields: Any) -> Any:
    return client.responses.create(**{"model": "tiny", "input": QUESTION, "max_output_tokens": 120, **fields})


def _output(response: Any) -> list[dict[str, Any]]:
    """Return the items of a response without the ids that differ between two requests."""
    hidden = ("id", "call_id", "parsed_arguments")
    return [{k: v for k, v in each.to_dict().items() if k not in hidden} for each in response.output]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief.", "temperature": 1.0, "extra_body": {"seed": 3}},
        {"tools": [WEATHER, *OTHERS], "tool_choice": "required"},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}},
        {"tools": [WEATHER], "parallel_tool_calls": False},
        {"max_output_tokens": 3},
    ],
    ids=lambda value: str(value)[:60],
)
def test_whole_and_streamed_responses_are_equal(client: Any, fields: dict[str, Any]) -> None:
    whole = _create(client, **fields)
    events = list(_create(client, stream=True, **fields))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert [each.type for each in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    assert _output(last.response) == _output(whole)
    assert last.response.usage == whole.usage
    assert whole.output
    added = {each.output_index: each.item.id for each in events if each.type == "response.output_item.added"}
    done = {each.output_index: each.item for each in events if each.type == "response.output_item.done"}
    assert {index: item.id for index, item in done.items()} == added
    assert [item.to_dict() for item in done.values()] == [each.to_dict() for each in last.response.output]
    text = "".join(each.delta for each in events if each.type == "response.output_text.delta")
    assert text == whole.output_text
    calls = [each for each in whole.output if each.type == "function_call"]
    if fields.get("tool_choice"):
        assert calls
        assert all(set(json.loads(each.arguments)) == {"city"} for each in calls)
        assert len({each.call_id for each in calls}) == len(calls)
        deltas = [each.delta for each in events if each.type == "response.function_call_arguments.delta"]
        assert deltas == [each.arguments for each in calls]
    if fields.get("max_output_tokens") == 3:
        assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_reasoning_is_an_item_of_its_own(thinking: Any) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 8}
    whole = _create(thinking, extra_body=extra)
    assert [each.type for each in whole.output] == ["reasoning", "message"]
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    events = list(_create(thinking, stream=True, extra_body=extra))
    assert _output(events[-1].response) == _output(whole)
    off = _create(thinking, reasoning={"effort": "none"})
    assert [each.type for each in off.output] == ["message"]
    history = [{"role": "user", "content": QUESTION}, *(each.to_dict() for each in whole.output)]
    again = _create(thinking, input=[*history, {"role": "user", "content": "Again"}])
    assert again.status in ("completed", "incomplete")


def test_structured_output(thinking: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    assert 0 <= json.loads(_create(thinking, text=form).output_text)["n"] <= 9
    vllm = {"structured_outputs": {"regex": "[0-9]{2}"}, "enable_thinking": False}
    assert re.fullmatch("[0-9]{2}", _create(thinking, extra_body=vllm).output_text)
