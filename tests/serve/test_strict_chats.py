"""Chat completions with OpenAI's own client, which validates every field of answers and chunks."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.chat_bundles import CITY, NOTHING
from tests.serve.servers import Server

pytest.importorskip("llguidance")
CHAT: list[Any] = [{"role": "user", "content": "There are 9 baskets, and each holds 6 candies. How many candies?"}]
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY, "strict": True}}
NOW: Any = {"type": "function", "function": {"name": "now", "parameters": NOTHING, "strict": True}}
_FIRST = {"index", "id", "type", "function"}
"""Fields that clients need in the first delta of a call."""


@pytest.fixture(params=["tool_server", "reasoning_server"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    server: Server = request.getfixturevalue(request.param)
    with server.strict_client("OpenAI") as made:
        yield made


def _message(message: Any) -> dict[str, Any]:
    """Return a message without the ids of its calls, which differ between two requests, and without empty fields."""
    calls = [(each.type, each.function.name, each.function.arguments) for each in message.tool_calls or ()]
    return {
        "role": message.role,
        "content": message.content or "",
        "reasoning": getattr(message, "reasoning", None) or "",
        "calls": calls,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 1.0, "seed": 3, "logprobs": True},
        {"tools": [WEATHER, NOW], "tool_choice": "required"},
        {"tools": [WEATHER, NOW], "tool_choice": {"type": "function", "function": {"name": "now"}}},
        {"tools": [WEATHER, NOW], "parallel_tool_calls": False, "temperature": 1.0, "seed": 5},
        {"tools": [WEATHER], "tool_choice": "none"},
        {"max_tokens": 3},
        {"extra_body": {"thinking_token_budget": 6}, "reasoning_effort": "high"},
    ],
    ids=lambda value: str(value)[:60],
)
def test_whole_and_streamed_chats_are_equal(client: Any, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", "messages": CHAT, "max_tokens": 120, **fields}
    whole = client.chat.completions.create(**body)
    (choice,) = whole.choices
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(**body, stream=True, stream_options=options))
    assert {each.object for each in chunks} == {"chat.completion.chunk"}
    assert len({(each.id, each.model, each.created) for each in chunks}) == 1
    assert chunks[-1].usage == whole.usage
    deltas = [each.choices[0] for each in chunks[:-1]]
    assert [each.finish_reason for each in deltas] == [None] * (len(deltas) - 1) + [choice.finish_reason]
    calls = [call for each in deltas for call in each.delta.tool_calls or ()]
    assert [each.index for each in calls] == list(range(len(calls)))
    assert all(each.to_dict().keys() == _FIRST for each in calls)
    streamed = {
        "role": "assistant",
        "content": "".join(each.delta.content or "" for each in deltas),
        "reasoning": "".join(getattr(each.delta, "reasoning", None) or "" for each in deltas),
        "calls": [(each.type, each.function.name, each.function.arguments) for each in calls],
    }
    assert streamed == _message(choice.message)
    chosen = fields.get("tool_choice")
    assert bool(calls) if chosen not in (None, "none") else chosen is None or not calls
    assert not calls or choice.finish_reason == "tool_calls"
    if choice.finish_reason == "length":
        return  # the helper turns it into an error
    with client.chat.completions.stream(**body) as stream:
        events = [each.type for each in stream]
        final = stream.get_final_completion().choices[0]
    assert _message(final.message) == _message(choice.message)
    assert events.count("tool_calls.function.arguments.done") == len(calls)
