"""Scores of choices and best candidates over HTTP, with a real server and OpenAI's client."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.chat_bundles import with_chat_template
from tests.serve.conftest import TEMPLATE
from tests.serve.servers import Server, serving

from lopa.runtime import ChoiceScores, Decoder, GenerationResult

PROMPT = "Question: 2 + 3?\nAnswer:"
CHAT: Any = [{"role": "user", "content": "What is 2 + 3?"}]
CHOICES: Any = [" The", " So the answer is 5.", [7, 8, 9]]


@pytest.fixture(scope="module")
def logits_bundle(tiny_bundle_logits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_chat_template(tiny_bundle_logits, tmp_path_factory.mktemp("scores") / "chat", TEMPLATE)


@pytest.fixture(scope="module")
def scorer(logits_bundle: Path) -> Iterator[Server]:
    """Yield a server of a bundle that returns logits, with a short queue."""
    with serving(logits_bundle, "--max-num-seqs", 2, "--queue", 2) as started:
        yield started


@pytest.fixture(scope="module")
def decoder(logits_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(logits_bundle, threads=1) as opened:
        yield opened


def post(server: Server, path: str, **body: Any) -> Any:
    return server.http.post(path, json={"model": "tiny", **body})


def expected_scores(result: GenerationResult) -> ChoiceScores:
    assert result.scores is not None
    return result.scores


def assert_scores(found: Any, expected: ChoiceScores) -> None:
    assert [each["index"] for each in found["choices"]] == list(range(len(expected.choices)))
    for one, other in zip(found["choices"], expected.choices, strict=True):
        assert (one["text"], one["tokens"]) == (other.text, len(other.token_ids))
        assert one["logprob"] == pytest.approx(other.logprob, abs=1e-3)
        assert one["probability"] == pytest.approx(other.probability, abs=1e-4)
    assert sum(each["probability"] for each in found["choices"]) == pytest.approx(1)
    assert found["label_mass"] == pytest.approx(expected.label_mass, abs=1e-4)
    assert found["canvas"] == expected.canvas


@pytest.mark.parametrize(
    ("lopa", "temperature"), [({}, None), ({"block_size": 8}, 0), ({"attention": "block_causal"}, 2.0)], ids=str
)
def test_a_score_has_the_probabilities_of_the_decoder(
    scorer: Server, decoder: Decoder, lopa: Any, temperature: Any
) -> None:
    reply = post(scorer, "/v1/score", prompt=PROMPT, choices=CHOICES, lopa=lopa, temperature=temperature)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    result = decoder.generate(PROMPT, choices=CHOICES, temperature=temperature, **lopa)
    assert_scores(found, expected_scores(result))
    assert (found["object"], found["model"]) == ("score", "tiny")
    assert reply.headers["x-request-id"] == found["id"]
    tokens = len(result.prompt_ids)
    assert found["usage"] == {
        "prompt_tokens": tokens,
        "completion_tokens": 0,
        "total_tokens": tokens,
        "lopa": {"steps": 1},
    }


def test_a_score_of_a_chat_and_of_ids(scorer: Server, decoder: Decoder) -> None:
    history = decoder.tokenizer.chat(CHAT)
    expected = expected_scores(decoder.generate(history, choices=CHOICES))
    assert_scores(post(scorer, "/v1/score", messages=CHAT, choices=CHOICES).json(), expected)
    assert_scores(post(scorer, "/v1/score", prompt=history, choices=CHOICES).json(), expected)
    nested = post(scorer, "/v1/score", prompt=PROMPT, choices=[" The", [281, 5]]).json()
    assert nested["label_mass"] is None, "one choice begins with the other"


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_answers_with_the_most_probable_choice(scorer: Server, decoder: Decoder, stream: bool) -> None:
    expected = decoder.generate(decoder.tokenizer.chat(CHAT), choices=CHOICES)
    answer: Any = scorer.client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        stream=stream,
        logprobs=True,
        top_logprobs=2,
        stop=["e"],
        extra_body={"lopa": {"choices": CHOICES}},
    )
    if stream:
        *parts, last = [part.choices[0] for part in answer]
        text, choice = "".join(part.delta.content or "" for part in parts), last
    else:
        (choice,) = answer.choices
        text = choice.message.content
    assert (text, choice.finish_reason) == (expected.text, "stop")
    assert choice.model_extra["lopa"]["stop_reason"] == "choice"
    assert_scores(choice.model_extra["lopa"], expected_scores(expected))
    assert len(choice.logprobs.content) == expected.tokens
    assert all(len(each.top_logprobs) == 2 for each in choice.logprobs.content)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "messages": CHAT, "choices": ["a"]}, "prompt"),
        ({"prompt": "x"}, "choices"),
        ({"prompt": "x", "choices": [[1024]]}, "choices"),
        ({"prompt": "x", "choices": ["a"], "lopa": {"choices": ["b"]}}, "choices"),
        ({"prompt": "x", "choices": ["a"], "guided_regex": "a"}, "guided_regex"),
        ({"prompt": "x", "choices": ["a"], "repetition_penalty": 1.5}, "repetition_penalty"),
        ({"prompt": "x", "choices": ["a"], "stop_token_ids": [5]}, "stop_token_ids"),
        ({"prompt": "x", "choices": ["a"], "n": 2}, "n"),
        ({"prompt": "x", "choices": ["a"], "stream": True}, "stream"),
        ({"prompt": ["x", "y"], "choices": ["a"]}, "prompt"),
        ({"prompt": [5] * 2048, "choices": ["a"]}, "prompt"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_invalid_score_fields_are_rejected_by_name(scorer: Server, body: Any, param: str) -> None:
    reply = post(scorer, "/v1/score", **body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_a_bundle_without_logits_names_the_remedy(server: Server) -> None:
    for path, param in (("/v1/score", "choices"), ("/v1/completions", "lopa.choices")):
        body = {"choices": ["zebra"]} if param == "choices" else {"lopa": {"choices": ["zebra"]}}
        error = post(server, path, prompt=PROMPT, **body).json()["error"]
        assert error["param"] == param
        assert "not among the 8 most probable" in error["message"]
        assert error["message"].endswith("what to do: constrain the answer with a regex"), "nothing for the operator"
    answer = post(
        server, "/v1/completions", prompt=PROMPT, max_tokens=32, logprobs=8, lopa={"strategy": "sequential"}
    ).json()
    best = {
        text: logprob for text, logprob in answer["choices"][0]["logprobs"]["top_logprobs"][0].items() if text != " "
    }
    found = post(server, "/v1/score", prompt=PROMPT, choices=list(best)).json()
    assert [each["logprob"] for each in found["choices"]] == pytest.approx(list(best.values()), abs=1e-4)


def test_choices_follow_the_prompt_directly(reasoning_server: Server) -> None:
    """A choice inside the reasoning would be no answer, and a call of a tool is no choice."""
    tool = {"type": "function", "function": {"name": "f"}}
    for fields, message in (
        ({"chat_template_kwargs": {"enable_thinking": True}}, "opens the reasoning"),
        ({"tools": [tool]}, "choices with tools"),
        ({"tools": [tool], "tool_choice": "required"}, "choices with tools"),
    ):
        body = {"messages": CHAT, "lopa": {"choices": ["yes"]}, **fields}
        reply = post(reasoning_server, "/v1/chat/completions", **body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "lopa.choices"), reply.text
        assert message in reply.json()["error"]["message"]
        reply = post(reasoning_server, "/v1/score", messages=CHAT, choices=["yes"], **fields)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "choices"), reply.text
    for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"tools": [tool], "tool_choice": "none"}):
        message = post(reasoning_server, "/v1/score", messages=CHAT, choices=["zebra"], **fields).json()["error"]
        assert "8 most probable" in message["message"], "it was scored, and this bundle has no logits"


def test_a_deadline_a_missing_model_and_a_wrong_method(scorer: Server) -> None:
    late = post(scorer, "/v1/score", prompt=PROMPT, choices=["a"], lopa={"deadline": 1e-6})
    assert (late.status_code, late.json()["error"]["code"]) == (408, "timeout")
    assert post(scorer, "/v1/score", prompt="x", choices=["a"], model="other").status_code == 404
    assert scorer.http.get("/v1/score").status_code == 405
    assert scorer.http.post("/v1/score", content=b"[1]").json()["error"]["code"] == "invalid_json"


def test_scores_are_counted(scorer: Server) -> None:
    before = scorer.metric('lopa_requests_total{endpoint="score",finish_reason="stop"')
    assert post(scorer, "/v1/score", prompt=PROMPT, choices=CHOICES).status_code == 200
    assert scorer.metric('lopa_requests_total{endpoint="score",finish_reason="stop"') == before + 1


# Best candidates


def test_chats_return_the_best_candidates(scorer: Server, decoder: Decoder) -> None:
    expected = decoder.generate(decoder.tokenizer.chat(CHAT), max_new_tokens=24, top_logprobs=4)
    fields: Any = {"model": "tiny", "messages": CHAT, "max_tokens": 24, "logprobs": True, "top_logprobs": 4}
    (chat,) = scorer.client.chat.completions.create(**fields).choices
    assert chat.logprobs is not None
    assert chat.logprobs.content is not None
    assert expected.top_logprobs is not None
    for entry, token, best in zip(chat.logprobs.content, expected.token_ids, expected.top_logprobs, strict=True):
        assert entry.token == decoder.tokenizer.decode([token])
        assert entry.bytes == list(entry.token.encode())
        assert [each.token for each in entry.top_logprobs] == [decoder.tokenizer.decode([each[0]]) for each in best]
        assert [each.logprob for each in entry.top_logprobs] == pytest.approx([each[1] for each in best], abs=1e-4)
        assert all(each.bytes == list(each.token.encode()) for each in entry.top_logprobs)
    *_, last = scorer.client.chat.completions.create(**fields, stream=True)
    assert last.choices[0].logprobs is not None
    assert last.choices[0].logprobs.content == chat.logprobs.content


def test_completions_return_the_best_candidates_and_the_token(scorer: Server, decoder: Decoder) -> None:
    options: Any = {"temperature": 2.0, "seed": 3, "skip_threshold": 0.3}
    expected = decoder.generate(PROMPT, max_new_tokens=24, top_logprobs=1, **options)
    (plain,) = scorer.client.completions.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=24,
        logprobs=1,
        temperature=2.0,
        seed=3,
        extra_body={"lopa": {"skip_threshold": 0.3}},
    ).choices
    assert plain.logprobs is not None
    assert plain.logprobs.top_logprobs is not None
    assert plain.logprobs.tokens is not None
    assert expected.top_logprobs is not None
    assert plain.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    drawn = 0
    for token, best, (candidate,) in zip(
        plain.logprobs.tokens, plain.logprobs.top_logprobs, expected.top_logprobs, strict=True
    ):
        text = decoder.tokenizer.decode([candidate.token_id])
        assert set(best) == {token, text}
        assert best[text] == pytest.approx(candidate.logprob, abs=1e-4)
        drawn += token != text
    assert drawn, "some tokens are not the most probable ones"


def test_a_part_of_a_character_has_no_bytes(scorer: Server, decoder: Decoder) -> None:
    """Byte-level tokens of an emoji are no text by themselves."""
    ids = decoder.tokenizer.encode("\N{SNOWMAN}", add_bos=False)
    assert len(ids) > 1
    body = {"prompt": PROMPT, "lopa": {"choices": ["\N{SNOWMAN}"]}}
    chat = post(scorer, "/v1/chat/completions", messages=CHAT, logprobs=True, top_logprobs=1, lopa=body["lopa"]).json()
    choice = chat["choices"][0]
    assert choice["message"]["content"] == "\N{SNOWMAN}"
    assert all(each["bytes"] is None for each in choice["logprobs"]["content"])
    assert all(math.isfinite(each["logprob"]) for each in choice["logprobs"]["content"])


def test_a_client_that_leaves_frees_its_place(scorer: Server) -> None:
    """512 windows take many forwards, and the client waits for a small part of them."""
    cancelled = scorer.metric("lopa_cancelled_total")
    with pytest.raises(httpx2.TimeoutException):
        scorer.http.post(
            "/v1/score",
            json={"model": "tiny", "prompt": [5] * 1400, "choices": [list(range(10, 520))]},
            timeout=0.7,
        )
    scorer.until_idle()
    assert scorer.metric("lopa_cancelled_total") == cancelled + 1
