"""Conversations over HTTP: the prefix cache changes usage and metrics, but no answer."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.serve.servers import Server, serving

CHATS = "/v1/chat/completions"
BLOCKS = ("--default", "alignment=absolute", "--default", "attention=block_causal", "--default", "block_size=8")


@pytest.fixture(scope="module")
def cached(chat_bundle: Path) -> Iterator[Server]:
    with serving(chat_bundle, *BLOCKS, "--cache-tokens", 400) as server:
        yield server


def turns(
    server: Server, topic: str, count: int = 3, *, alone: bool = False, **fields: Any
) -> list[tuple[str, int, int]]:
    """Return the text, the prompt tokens and the cached tokens of every turn of a conversation.

    Turns that are `alone` have a salt each.
    """
    messages: list[dict[str, str]] = [{"role": "user", "content": f"Tell me about {topic}, please. Be brief."}]
    found = []
    for number in range(count):
        if alone:
            fields = {"cache_salt": f"{topic} {number}"}
        body = {"model": "tiny", "messages": messages, "max_tokens": 24, "lopa": {"stop_at_eos": False}, **fields}
        answer = server.http.post(CHATS, json=body)
        assert answer.status_code == 200, answer.text
        message, usage = answer.json()["choices"][0]["message"], answer.json()["usage"]
        found.append((message["content"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
        messages += [message, {"role": "user", "content": f"And number {number}?"}]
    return found


def test_turns_reuse_the_conversation_and_answer_the_same(cached: Server) -> None:
    without = turns(cached, "boats", alone=True)
    hits, rows = cached.metric("lopa_prefix_cache_hits_total"), cached.metric("lopa_prompt_rows_reused_total")
    with_cache = turns(cached, "boats")
    assert [each[:2] for each in with_cache] == [each[:2] for each in without]
    assert [each[2] for each in without] == [0] * 3
    for (_, before, _), (_, tokens, reused) in pairwise(with_cache):
        assert before - 16 <= reused < tokens  # the text around the answer has other ids than before
        assert reused % 8 == 0
    assert cached.metric("lopa_prefix_cache_hits_total") - hits == 2
    assert cached.metric("lopa_prompt_rows_reused_total") - rows == sum(each[2] for each in with_cache)


def test_salts_separate_tenants(cached: Server) -> None:
    first = turns(cached, "trees", 1, cache_salt="a")
    assert first[0][2] == 0
    assert turns(cached, "trees", 1, cache_salt="b") == first
    assert turns(cached, "trees", 1)[0][2] < first[0][1] / 2  # only what other conversations without a salt begin with
    again = turns(cached, "trees", 1, cache_salt="a")
    assert again[0][0] == first[0][0]
    assert again[0][2] > 0


@pytest.mark.parametrize("salt", ["", 5, ["a"], "x" * 300])
def test_invalid_salts_are_rejected(cached: Server, salt: Any) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "2"}], "cache_salt": salt}
    answer = cached.http.post(CHATS, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


def test_old_conversations_are_evicted(cached: Server) -> None:
    turns(cached, "the oldest topic of all")
    before = cached.metric("lopa_prefix_cache_evictions_total")
    for topic in ("rain", "sun", "snow", "wind"):
        turns(cached, topic, 2, cache_salt=topic)
    assert cached.metric("lopa_prefix_cache_evictions_total") > before
    assert turns(cached, "the oldest topic of all", 1)[0][2] == 0
