"""Parsing of lines of OpenAI's batch files, field by field."""

from typing import Any

import pytest

from lopa.cli.batch.openai_line import request_from_openai_line
from lopa.runtime.errors import BadInputError
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.endpoints import ENDPOINTS

TALK = [{"role": "user", "content": "2 + 2?"}]


def read(line: dict[str, Any]) -> AnswerRequest:
    return request_from_openai_line(line, "bundle", {})


def options_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return the options, without the default length."""
    options = read(line).options
    return {name: value for name, value in options.values.items() if name in options.params}


def completion(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "text", **body}}


def chat(**body: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": TALK, **body}}


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({"max_tokens": 5}, {"max_new_tokens": 5}),
        ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
        ({"stop": None, "temperature": None, "tools": None}, {}),
        ({"n": 1, "stream": False, "tools": []}, {}),
        ({"logit_bias": {}, "presence_penalty": 0.0}, {"logit_bias": {}, "presence_penalty": 0.0}),
        ({"user": "me", "metadata": {"a": "b"}, "store": True, "model": "m"}, {}),
        ({"lopa": {"strategy": "d2f", "branches": 1}}, {"strategy": "d2f", "branches": 1}),
    ],
)
def test_fields_and_the_options_that_they_are(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert options_of(completion(**body)) == options
    assert options_of(chat(**body)) == options


@pytest.mark.parametrize(
    "body",
    [
        {"stream": True},
        {"tools": [{"type": "function"}]},
        {"lopa": {"deadline": 5}},
        {"max_tokens": 5, "lopa": {"max_new_tokens": 6}},
    ],
)
def test_fields_that_would_change_the_answer_are_rejected(body: dict[str, Any]) -> None:
    for line in (completion(**body), chat(**body)):
        with pytest.raises(BadInputError):
            read(line)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "/v1/embeddings"},
        {"method": "GET"},
        {"body": "text"},
        {"custom_id": 5},
        {"extra": 1},
        {"body": {}},
    ],
)
def test_lines_of_another_form_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        read({**completion(), **wrong})


@pytest.mark.parametrize("url", ENDPOINTS)
def test_every_endpoint_of_the_server_is_known(url: str) -> None:
    body: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "a"},
        "/v1/responses": {"input": "a"},
        "/v1/score": {"prompt": "a"},
    }
    fields = body.get(url, {"messages": TALK})
    own: dict[str, Any] = {"/v1/messages": {"max_tokens": 8}, "/v1/score": {"choices": ["a", "b"]}}.get(url, {})
    found = read({"custom_id": "a", "url": url, "body": {**fields, **own}})
    assert (found.endpoint, found.model) == (url, "bundle")
