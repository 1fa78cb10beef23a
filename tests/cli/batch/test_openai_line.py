"""Parsing of lines of OpenAI's batch files, field by field."""

from typing import Any

import pytest

from lopa.cli.batch.openai_line import parse_openai_line
from lopa.runtime.errors import BadInputError

TALK = [{"role": "user", "content": "2 + 2?"}]


def completion(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "text", **body}}


def chat(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": TALK, **body}}


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"max_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_new_tokens": 5}),
        ({"temperature": 0.5, "top_p": 0.9, "seed": 3}, {"temperature": 0.5, "top_p": 0.9, "seed": 3}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
        ({"stop": None, "temperature": None, "tools": None}, {}),
        ({"n": 1, "stream": False, "logit_bias": {}, "tools": [], "presence_penalty": 0.0}, {}),
        ({"user": "me", "metadata": {"a": "b"}, "store": True, "model": "m"}, {}),
        ({"lopa": {"strategy": "d2f", "branches": 1}}, {"strategy": "d2f", "branches": 1}),
    ],
)
def test_fields_and_the_options_that_they_are(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert parse_openai_line(completion(**body)).options == options
    assert parse_openai_line(chat(**body)).options == options


def test_log_probabilities_are_requested_in_two_ways() -> None:
    assert parse_openai_line(chat(logprobs=True, top_logprobs=2)).options == {"logprobs": True, "top_logprobs": 2}
    assert parse_openai_line(chat(logprobs=False)).options == {"logprobs": False}
    assert parse_openai_line(completion(logprobs=0)).options == {"logprobs": True}
    assert parse_openai_line(completion(logprobs=3)).options == {"logprobs": True, "top_logprobs": 3}
    for line in (completion(logprobs=9), completion(logprobs=True), chat(top_logprobs=2)):
        with pytest.raises(BadInputError, match="logprobs"):
            parse_openai_line(line)


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"n": True},
        {"n": "1"},
        {"stream": True},
        {"tools": [{"type": "function"}]},
        {"logit_bias": {"5": 1}},
        {"presence_penalty": 0.5},
        {"best_of": 3},
        {"response_format": {"type": "xml"}},
        {"guided_choice": []},
        {"repetition_penalty": 1.2},
        {"max_tokens": 5, "max_completion_tokens": 6},
        {"max_tokens": 5, "lopa": {"max_new_tokens": 6}},
        {"lopa": {"max_tokens": 5}},
        {"lopa": [1]},
    ],
)
def test_fields_that_would_change_the_answer_are_rejected(body: dict[str, Any]) -> None:
    for line in (completion(**body), chat(**body)):
        with pytest.raises(BadInputError):
            parse_openai_line(line)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "/v1/embeddings"},
        {"url": ["/v1/completions"]},
        {"method": "GET"},
        {"body": "text"},
        {"custom_id": 5},
        {"custom_id": None},
        {"extra": 1},
        {"body": {}},
        {"body": {"prompt": ["one", "two"]}},
        {"body": {"prompt": 5}},
    ],
)
def test_lines_of_another_form_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        parse_openai_line({**completion(), **wrong})


def test_prompts_and_messages() -> None:
    assert parse_openai_line(completion()).prompt == "text"
    assert parse_openai_line(completion(prompt=["text"])).prompt == "text"
    assert parse_openai_line(completion(prompt=[1, 2])).prompt == [1, 2]
    parts = [{"type": "text", "text": "2 + "}, {"type": "text", "text": "2?"}]
    parsed = parse_openai_line(chat(messages=[{"role": "user", "content": parts, "name": None}]))
    assert parsed.messages == TALK
    with pytest.raises(BadInputError, match="text only"):
        parse_openai_line(chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]))
