"""A server of DiffusionGemma with Gemma's tokens: streams by canvas, drafts, seeds, tools and reasoning by template."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import with_tokenizer_files
from tests.runtime.text.chat_templates import TEMPLATES
from tests.serve.chat.test_gemma_calls import MARKS
from tests.serve.servers import Server, serving

_CHAT: Any = [{"role": "user", "content": "Tell me about a dog."}]
_TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def server(canvas_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    def add(tokenizer: dict[str, Any]) -> dict[str, Any]:
        """Put Gemma's tokens in place of the last words."""
        model, pattern = tokenizer["model"], tokenizer["added_tokens"][-1]
        last = len(model["vocab"]) - len(MARKS)
        model["vocab"] = {text: number for text, number in model["vocab"].items() if number < last}
        model["merges"] = [each for each in model["merges"] if "".join(each) in model["vocab"]]
        added = [{**pattern, "id": last + n, "content": text} for n, text in enumerate(MARKS)]
        return tokenizer | {"added_tokens": tokenizer["added_tokens"] + added}

    copy = tmp_path_factory.mktemp("canvases") / "bundle"
    with_tokenizer_files(canvas_bundle, copy, lambda s: s | {"chat_template": TEMPLATES["gemma4"]}, add)
    with serving(copy, "--max-num-seqs", 4) as started:
        yield started


def _answer(server: Server, **fields: Any) -> Any:
    answer = server.http.post("/v1/chat/completions", json={"model": "tiny", "messages": _CHAT, **fields})
    return answer.json() if answer.status_code == 200 else answer.json()["error"]


def test_a_stream_has_drafts_and_text_by_canvas(server: Server) -> None:
    whole = _answer(server, seed=5)
    (choice,) = whole["choices"]
    assert (choice["lopa"]["seed"], choice["lopa"]["top_k"]) == (5, 0)
    assert whole["usage"]["completion_tokens"] == choice["lopa"]["tokens"]
    body = {"model": "tiny", "messages": _CHAT, "seed": 5, "stream": True, "stream_options": {"include_drafts": True}}
    texts, drafts = list[str](), list[tuple[int, str]]()
    with server.http.stream("POST", "/v1/chat/completions", json=body) as stream:
        for line in stream.iter_lines():
            for found in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                if "draft" in (found.get("lopa") or {}):
                    drafts.append((len(texts), found["lopa"]["draft"]))
                if found["delta"].get("content"):
                    texts.append(found["delta"]["content"])
    assert "".join(texts) == choice["message"]["content"]
    assert 1 <= len(texts) <= -(-choice["lopa"]["tokens"] // 16) + 1
    assert len(drafts) > len(texts)
    assert min(count for count, _ in drafts) == 0, "drafts come before the first text"


def test_several_answers_are_drawn_each(server: Server) -> None:
    for seed in ({}, {"seed": 7}):
        found = _answer(server, n=4, **seed)["choices"]
        assert len({each["lopa"]["seed"] for each in found}) == 4
    repeated = _answer(server, n=4, seed=7)["choices"]
    assert [each["message"]["content"] for each in repeated] == [each["message"]["content"] for each in found]
    alone = _answer(server, seed=found[2]["lopa"]["seed"])["choices"][0]
    assert alone["message"]["content"] == found[2]["message"]["content"]


def test_clients_temperatures(server: Server) -> None:
    usual = _answer(server, seed=5)["choices"][0]["message"]["content"]
    assert _answer(server, seed=5, temperature=1)["choices"][0]["message"]["content"] == usual
    assert "temperature 0 with strategy 'canvas'" in _answer(server, temperature=0)["message"]


def test_tools_and_reasoning_are_those_of_the_template(server: Server) -> None:
    plain = _answer(server, max_tokens=16)["usage"]["prompt_tokens"]
    with_tools = _answer(server, max_tokens=16, tools=_TOOLS)
    assert with_tools["usage"]["prompt_tokens"] > plain
    forced = _answer(server, tools=_TOOLS, tool_choice="required")
    assert (forced["param"], "calls have the format gemma" in forced["message"]) == ("tools", True)
    closed = _answer(server, max_tokens=16, chat_template_kwargs={"enable_thinking": False})
    assert closed["usage"]["prompt_tokens"] > plain
    assert "strategy 'canvas'" in _answer(server, response_format={"type": "json_object"})["message"]


def test_the_usual_length_is_whole_canvases_that_fit(server: Server) -> None:
    for prompt, code in ((2020, 200), (2033, 400)):  # of 2048 positions, in canvases of 16
        answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": [7] * prompt, "seed": 1})
        assert answer.status_code == code, answer.text
    too_long = _answer(server, max_tokens=2040)
    assert "at most 2016 with this prompt" in too_long["message"]


def test_images_are_refused_by_name(server: Server) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    refused = _answer(server, messages=[{"role": "user", "content": [image]}])
    assert "image_url" in refused["message"]
    assert "text only" in refused["message"]
