"""Holes over HTTP: `suffix` and `lopa.parts` of completions, whole and streamed, equal the decoder's."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.serve.servers import STOPPING, Server, serving

from lopa.runtime import Decoder
from lopa.runtime.text.text_with_holes import Hole

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def bundle(family_bundle: Callable[..., Path]) -> Path:
    return family_bundle("llada")


@pytest.fixture(scope="module")
def holes_server(bundle: Path) -> Iterator[Server]:
    with serving(bundle, "--max-tokens", 100) as started:
        yield started
        assert started.stop() == (0, f"{STOPPING}\n")


@pytest.fixture(scope="module")
def decoder(bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(bundle, threads=1) as opened:
        yield opened


def _posted(server: Server, **body: Any) -> Any:
    reply = server.http.post(COMPLETIONS, json={"model": "tiny", **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_suffix_is_the_text_behind_a_hole(holes_server: Server, decoder: Decoder) -> None:
    expected = decoder.fill(["Question: 2 + ", Hole(6), " = 5."])
    body = {"prompt": "Question: 2 + ", "suffix": " = 5.", "max_tokens": 6}
    found = _posted(holes_server, **body)
    (choice,) = found["choices"]
    assert choice["text"] == expected.text
    assert choice["lopa"]["filled_text"] == expected.filled_text == f"Question: 2 + {expected.text} = 5."
    assert choice["lopa"]["holes"] == [expected.text]
    assert choice["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == expected.tokens
    with holes_server.http.stream("POST", COMPLETIONS, json={"model": "tiny", "stream": True, **body}) as reply:
        events = [json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == expected.text


def test_parts_have_several_holes(holes_server: Server, decoder: Decoder) -> None:
    expected = decoder.fill("Name: <hole:4>, age: <hole:2>.", strategy="lopa", branches=3)
    parts = [{"text": "Name: "}, {"hole": 4}, {"text": ", age: "}, {"hole": 2}, {"text": "."}]
    (choice,) = _posted(holes_server, lopa={"parts": parts, "strategy": "lopa", "branches": 3})["choices"]
    assert (choice["text"], choice["lopa"]["holes"]) == (expected.text, list(expected.holes or ()))
    assert choice["lopa"]["filled_text"] == expected.filled_text


def test_grammars_of_holes(holes_server: Server) -> None:
    form = [{"text": "Date: "}, {"hole": 10, "regex": "[0-9]{4}-[0-9]{2}"}, {"text": ", sum "}, {"hole": 3}]
    (choice,) = _posted(holes_server, lopa={"parts": form})["choices"]
    assert re.fullmatch(r"Date: [0-9]{4}-[0-9]{2}, sum (?s:.*)", choice["lopa"]["filled_text"])
    schema = {"type": "object", "properties": {"n": {"enum": [12, 345]}, "ok": {"type": "boolean"}}, "required": ["n"]}
    parts = [{"text": '{"n": '}, {"hole": 4}, {"text": ', "ok": '}, {"hole": 5}, {"text": "}"}]
    (choice,) = _posted(holes_server, lopa={"parts": parts, "json_schema": schema})["choices"]
    assert json.loads(choice["lopa"]["filled_text"])["n"] in (12, 345)
    (choice,) = _posted(holes_server, prompt="abc", suffix="z", max_tokens=4, lopa={"regex": "abc[0-9]{2}z"})["choices"]
    assert re.fullmatch("[0-9]{2}", choice["text"])


def test_a_range_of_lengths(holes_server: Server, decoder: Decoder) -> None:
    expected = decoder.fill("Name: <hole:1-6>.")
    found = _posted(holes_server, lopa={"parts": [{"text": "Name: "}, {"hole": [1, 6]}, {"text": "."}]})
    assert found["choices"][0]["text"] == expected.text
    assert found["usage"]["completion_tokens"] == expected.tokens
    body = {"model": "tiny", "lopa": {"parts": [{"hole": [1, 101]}]}}
    reply = holes_server.http.post(COMPLETIONS, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "lopa.parts")


def test_a_limit_of_forwards_leaves_a_complete_answer(holes_server: Server, decoder: Decoder) -> None:
    options: dict[str, Any] = {"strategy": "vanilla", "max_forwards": 2, "anytime": True}
    expected = decoder.fill("Name: <hole:4>.", **options)
    found = _posted(holes_server, lopa={"parts": [{"text": "Name: "}, {"hole": 4}, {"text": "."}], **options})
    assert found["choices"][0]["text"] == expected.text
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["lopa"]["steps"] == expected.steps == 2
    assert found["usage"]["lopa"]["draft_probability"] == pytest.approx(expected.draft_probability)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "suffix": "b", "max_tokens": 0}, "max_tokens"),
        ({"lopa": {"parts": [{"text": "a"}, {"hole": 2, "regex": "("}]}}, "lopa"),
        ({"lopa": {"parts": [{"text": "a"}, {"hole": 2, "regex": "[0-9]{9}"}]}}, "lopa"),
        ({"prompt": "a", "lopa": {"parts": [{"hole": 2}]}}, "lopa.parts"),
        ({"lopa": {"parts": [{"text": "a"}]}}, "lopa.parts"),
        ({"lopa": {"parts": [{"text": "a", "hole": 2}]}}, "lopa.parts"),
        ({"lopa": {"parts": [{"text": "a"}, {"hole": 101}]}}, "lopa.parts"),
    ],
    ids=str,
)
def test_invalid_holes_are_refused_by_name(holes_server: Server, body: dict[str, Any], param: str) -> None:
    reply = holes_server.http.post(COMPLETIONS, json={"model": "tiny", **body})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error


def test_chats_have_no_holes(holes_server: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "suffix": "b"}
    assert holes_server.http.post("/v1/chat/completions", json=body).json()["error"]["param"] == "suffix"
