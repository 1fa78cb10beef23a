"""Unmodified official client against a real server: non-streamed answers and rejected requests."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tests.serve.servers import Server, serving

from lopa.runtime import Decoder
from lopa.tiny import EVAL

QUESTIONS = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()[:6]]
CHAT: Any = [{"role": "user", "content": QUESTIONS[0]}]


@pytest.fixture(scope="module")
def decoder(chat_bundle: Any) -> Any:
    with Decoder.open(chat_bundle, threads=1) as opened:
        yield opened


def test_models(server: Server) -> None:
    (model,) = server.client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "lopa-export")
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] > 0
    paths = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/score"]
    assert model.model_extra["endpoints"] == paths
    assert server.client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError) as refused:
        server.client.models.retrieve("other")
    assert refused.value.code == "model_not_found"


def test_chat_without_a_chat_template_is_rejected(tiny_bundle: Path) -> None:
    with serving(tiny_bundle) as server:
        (model,) = server.client.models.list().data
        assert model.model_extra is not None
        assert model.model_extra["endpoints"] == ["/v1/completions", "/v1/score"]
        with pytest.raises(openai.BadRequestError) as refused:
            server.client.chat.completions.create(model="tiny", messages=CHAT)
        assert refused.value.param == "messages"


def test_chat_equals_the_decoder_s_answer(server: Server, decoder: Decoder) -> None:
    history: Any = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": part} for part in (QUESTIONS[0][:9], QUESTIONS[0][9:])]},
    ]
    before = server.metric("lopa_steps_total")
    answer = server.client.chat.completions.create(
        model="tiny", messages=history, max_completion_tokens=48, max_tokens=1
    )
    plain = [{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTIONS[0]}]
    (expected,) = decoder.generate([decoder.tokenizer.chat(plain)], decoder.config(max_new_tokens=48))
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert (choice.index, choice.logprobs, choice.message.refusal) == (0, None, None)
    assert choice.finish_reason == {"eos": "stop", "length": "length"}[expected.stop_reason]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(expected.prompt_ids)
    assert answer.usage.completion_tokens == expected.tokens
    assert answer.usage.total_tokens == len(expected.prompt_ids) + expected.tokens
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", "tiny", "chatcmpl-")
    assert answer.system_fingerprint is not None
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["lopa"]["steps"] == expected.steps
    server.until(lambda: server.metric("lopa_steps_total") == before + expected.steps)
    assert choice.model_extra is not None
    assert choice.model_extra["lopa"]["stop_reason"] == expected.stop_reason


def test_completions_of_texts_and_token_ids(server: Server, decoder: Decoder) -> None:
    rng = np.random.default_rng(7)
    ids = [rng.integers(10, 200, length).tolist() for length in (5, 17)]
    for prompt in (QUESTIONS[1], QUESTIONS[:3], ids[0], ids):
        answer = server.client.completions.create(model="tiny", prompt=prompt, max_tokens=24)
        prompts: Any = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
        expected = decoder.generate(prompts, decoder.config(max_new_tokens=24))
        assert [choice.text for choice in answer.choices] == [each.text for each in expected]
        assert [choice.index for choice in answer.choices] == list(range(len(prompts)))
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(len(each.prompt_ids) for each in expected)
        assert (answer.object, answer.id[:5]) == ("text_completion", "cmpl-")


def test_every_sampled_answer_draws_its_own_seed(server: Server) -> None:
    fields: Any = {"model": "tiny", "prompt": [QUESTIONS[0]] * 3, "n": 2, "max_tokens": 24, "temperature": 1.5}
    choices = server.client.completions.create(**fields).choices
    assert len({choice.lopa["seed"] for choice in choices}) == 6
    assert len({choice.text for choice in choices}) > 1
    again = server.client.completions.create(**{**fields, "n": 1}, seed=choices[-1].lopa["seed"]).choices
    assert {choice.text for choice in again} == {choices[-1].text}  # the seed that was sent, for every prompt


def test_sampled_copies_have_distinct_seeds(server: Server, decoder: Decoder) -> None:
    prompts = QUESTIONS[:2]
    request_fields: Any = {
        "model": "tiny",
        "prompt": prompts,
        "max_tokens": 24,
        "temperature": 1.0,
        "n": 3,
        "best_of": 3,  # all that are decoded are returned
        "seed": 2**63 - 2,
    }
    answer = server.client.completions.create(**request_fields)
    seeds = (2**63 - 2, 2**63 - 1, 0)
    expected = [
        result.text
        for prompt in prompts
        for seed in seeds
        for result in decoder.generate([prompt], decoder.config(max_new_tokens=24, temperature=1.0, seed=seed))
    ]
    assert [choice.text for choice in answer.choices] == expected
    assert len(set(expected[:3])) == 3
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(decoder.tokenizer.encode(each, add_bos=True)) for each in prompts)


def test_stop_strings_end_the_answer(server: Server) -> None:
    whole = server.client.completions.create(model="tiny", prompt=QUESTIONS[0], max_tokens=48).choices[0].text
    stop = whole[5:8]
    for given in (stop, [stop, "never there"]):
        (choice,) = server.client.completions.create(
            model="tiny", prompt=QUESTIONS[0], max_tokens=48, stop=given
        ).choices
        assert (choice.text, choice.finish_reason) == (whole[: whole.index(stop)], "stop")


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    ("invalid", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        ({"response_format": json_schema({"not": {}})}, "response_format"),
        ({"response_format": json_schema({"const": "long" * 99}), "max_tokens": 20}, "response_format"),
        ({"logprobs": True, "top_logprobs": 9}, "top_logprobs"),
        ({"lopa": {"choices": ["zebra"]}}, "lopa.choices"),
        ({"max_tokens": 1025}, "max_tokens"),
        ({"max_completion_tokens": 1025}, "max_completion_tokens"),
        ({"n": 9}, "n"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options"),
        ({"lopa": {"branches": 9}}, "lopa.branches"),
        ({"lopa": {"time_limit": 51}}, "lopa.time_limit"),
        ({"lopa": [1]}, "lopa"),
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ["Hello"]}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
        ({"messages": IMAGE}, "messages"),
        ({"messages": [{"role": "user", "content": "many words " * 3000}]}, "messages"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_invalid_chat_fields_are_rejected_by_name(server: Server, invalid: dict[str, Any], param: str) -> None:
    answer = server.http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": CHAT, "max_tokens": 4, **invalid}
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert "expected" in error["message"]


@pytest.mark.parametrize(
    ("invalid", "param"),
    [
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"regex": "a", "top_k": 3, "guided_json": {}}, "guided_json"),
        ({"lopa": {"branches": "auto"}}, "lopa.branches"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 9}, "logprobs"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["text", 5]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ["x"] * 9}, "prompt"),
        ({"prompt": ["x"] * 3, "n": 3}, "n"),
        ({"prompt": [1] * 1100}, "prompt"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_invalid_completion_fields_are_rejected_by_name(server: Server, invalid: dict[str, Any], param: str) -> None:
    answer = server.http.post(
        "/v1/completions", json={"model": "tiny", "prompt": "2 + 2", "max_tokens": 1024, **invalid}
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 50_000, b'{"a": NaN}', b'{"a": "\\ud8']
)
def test_body_that_is_not_an_object_is_rejected(server: Server, body: bytes) -> None:
    answer = server.http.post("/v1/completions", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_other_errors_have_the_same_form(server: Server) -> None:
    for answer, status, code in (
        (server.http.get("/v1/nothing"), 404, "not_found"),
        (server.http.post("/v1/completions/"), 404, "not_found"),
        (server.http.get("/v1/completions"), 405, "method_not_allowed"),
        (server.http.post("/v1/completions", json={"model": "x\r\nA: b", "prompt": "2"}), 404, "model_not_found"),
        (server.http.get("/v1/models/x%0d%0aA:%20b"), 404, "not_found"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert "a" not in answer.headers
    for path, meant in (("/chat/completions", "/v1/chat/completions"), ("/v1/v1/messages", "/v1/messages")):
        message = server.http.post(path).json()["error"]["message"]
        assert message.endswith(f"did you mean {meant}? GET /openapi.json lists all paths."), message
    assert server.http.get("/v1/completions").json()["error"]["message"] == "/v1/completions takes POST, not GET"


def test_values_that_many_clients_send_are_accepted(server: Server) -> None:
    """Accept a seed of -1, a byte-order mark and a slash, as vLLM does, and stop strings that stop nothing."""
    fields: Any = {"model": "tiny", "prompt": QUESTIONS[0], "max_tokens": 40}
    usual = server.client.completions.create(**fields).choices[0].text
    for stop in ("", [""], ["", "no such text"], []):
        assert server.client.completions.create(**fields, stop=stop).choices[0].text == usual
    sampled: Any = {**fields, "temperature": 1.0, "seed": -1}
    seeds = {server.client.completions.create(**sampled).choices[0].lopa["seed"] for _ in range(2)}
    assert len(seeds) == 2
    assert min(seeds) >= 0
    marked = server.http.post("/v1/completions", content=b"\xef\xbb\xbf" + json.dumps(fields).encode())
    assert marked.json()["choices"][0]["text"] == usual
    assert server.http.get("/v1/models/").json() == server.http.get("/v1/models").json()


def test_a_large_top_k_is_answered_by_the_nearest_one_and_named(server: Server) -> None:
    """Chat clients send 40 or 50. Without a temperature it changes nothing."""
    fields: dict[str, Any] = {"model": "tiny", "prompt": QUESTIONS[0], "max_tokens": 24, "seed": 3, "temperature": 1}
    answers = [
        server.http.post("/v1/completions", json={**fields, **own}).json()["choices"][0]
        for own in ({"top_k": 50}, {"top_k": 8}, {"min_p": 1}, {"top_k": 50, "temperature": 0})
    ]
    assert [each["lopa"].get("top_k") for each in answers] == [8, 8, 8, None]
    assert answers[0]["text"] == answers[1]["text"] != answers[2]["text"]
    all_candidates = server.http.post("/v1/completions", json={**fields, "top_k": -1}).json()["choices"][0]
    assert (all_candidates["lopa"]["top_k"], all_candidates["text"]) == (8, answers[1]["text"])
    assert server.http.post("/v1/completions", json={**fields, "temperature": 0, "logit_bias": {}}).status_code == 200
    for own, param in (
        ({"lopa": {"top_k": 50}}, "lopa.top_k"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"lopa": {"repetition_penalty": 1.1}}, "lopa.repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ):
        refused = server.http.post("/v1/completions", json={**fields, **own})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert "a value of type" not in refused.json()["error"]["message"], "the value is shown"


def test_compressed_bodies_and_repeated_keys_are_refused(server: Server) -> None:
    fields = {"model": "tiny", "prompt": "x", "max_tokens": 1}
    packed = gzip.compress(json.dumps(fields).encode())
    refused = server.http.post("/v1/completions", content=packed, headers={"Content-Encoding": "gzip"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_encoding")
    plain = server.http.post("/v1/completions", json=fields, headers={"Content-Encoding": "identity"})
    assert plain.status_code == 200
    for body in (
        '{"model": "tiny", "prompt": "x", "prompt": "y"}',
        '{"model": "tiny", "lopa": {"steps": 1, "steps": 2}}',
    ):
        refused = server.http.post("/v1/completions", content=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_json")
        assert "occurs twice" in refused.json()["error"]["message"]


@pytest.mark.parametrize("length", [1792, 2047])
def test_without_max_tokens_the_answer_has_what_the_prompt_leaves(unbounded: Server, length: int) -> None:
    at_once = {"stop_at_eos": False, "strategy": "top_n", "tokens_per_step": 256, "block_size": 256}
    fields = {"model": "tiny", "prompt": [[5] * length, [5, 6]], "lopa": at_once}
    answer = unbounded.http.post("/v1/completions", json=fields).json()
    assert [each["lopa"]["tokens"] for each in answer["choices"]] == [min(256, 2048 - length), 256]
    names = ({"max_tokens": 256}, {"max_completion_tokens": 256}, {"lopa": {**at_once, "max_new_tokens": 256}})
    for given in names[: 1 if length == 1792 else 3]:
        given_length = unbounded.http.post("/v1/completions", json={**fields, "prompt": [5] * length, **given})
        assert given_length.status_code == (200 if length == 1792 else 400)
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x y " * (length // 5)}], "lopa": at_once}
    assert unbounded.http.post("/v1/chat/completions", json=chat).status_code == 200
    response = {"model": "tiny", "input": "x y " * (length // 5), "lopa": at_once}
    assert unbounded.http.post("/v1/responses", json=response).status_code == 200


def test_too_large_body_is_rejected(server: Server) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x" * 200_000}).encode()
    for content in (body, iter([body[:100_000], body[100_000:]])):  # with Content-Length, and in chunks
        answer = server.http.post("/v1/completions", content=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_too_long_answer_names_the_client_s_field(unbounded: Server, name: str, stream: bool) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "1" * 20}]
    body = {"model": "tiny", "messages": messages, "stream": stream}
    used = unbounded.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages, "max_tokens": 1})
    prompt = used.json()["usage"]["prompt_tokens"]
    for length in (5000, 2048):
        error = refused(unbounded, "/v1/chat/completions", {**body, name: length, "n": 2})
        assert (error["param"], error["code"]) == (name, "context_length_exceeded")
        assert error["message"].splitlines() == [
            f"{name} is {length}, but this model has 2048 positions for prompt and answer together (prompt: {prompt})",
            f"  expected: at most {2048 - prompt} with this prompt",
            f"  what to do: lower {name}",
        ]


def test_too_long_prompt_is_named_by_its_number(unbounded: Server) -> None:
    short, long, room = [5] * 30, [6] * 2040, "this model has 2048 positions for prompt and answer together"
    body = {"model": "tiny", "max_tokens": 20}
    error = refused(unbounded, "/v1/completions", {**body, "prompt": long})
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert error["message"].startswith(f"the prompt has 2040 tokens, but {room} (max_tokens: 20)\n")
    assert "at most 2028 tokens with this max_tokens" in error["message"]
    for copies in (1, 2):
        body_with_prompts = {**body, "prompt": [short, long, short], "n": copies, "temperature": copies - 1.0}
        error = refused(unbounded, "/v1/completions", body_with_prompts)
        assert error["message"].startswith("prompt 1 (counted from 0): the prompt has 2040 tokens")
    error = refused(unbounded, "/v1/completions", {**body, "prompt": long, "n": 2, "temperature": 1.0})
    assert error["message"].startswith("the prompt has 2040 tokens"), "a single prompt has no number"


def refused(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]
