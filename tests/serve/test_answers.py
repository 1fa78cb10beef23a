"""The official client, unmodified, against a real server: answers that are not streamed, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from tests.serve.servers import Server, serving

from lopa.runtime import Decoder
from lopa.tiny import EVAL

QUESTIONS = [json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines()[:6]]
TALK: Any = [{"role": "user", "content": QUESTIONS[0]}]


@pytest.fixture(scope="module")
def decoder(chat_bundle: Any) -> Any:
    with Decoder.open(chat_bundle, threads=1) as opened:
        yield opened


def test_models(server: Server) -> None:
    (model,) = server.client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "lopa-export")
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] > 0
    assert model.model_extra["endpoints"] == ["/v1/chat/completions", "/v1/completions"]
    assert server.client.models.retrieve("tiny") == model
    with pytest.raises(openai.NotFoundError) as refused:
        server.client.models.retrieve("other")
    assert refused.value.code == "model_not_found"


def test_a_bundle_without_a_chat_template_says_so(tiny_bundle: Path) -> None:
    with serving(tiny_bundle) as server:
        (model,) = server.client.models.list().data
        assert model.model_extra is not None
        assert model.model_extra["endpoints"] == ["/v1/completions"]
        with pytest.raises(openai.BadRequestError) as refused:
            server.client.chat.completions.create(model="tiny", messages=TALK)
        assert refused.value.param == "messages"


def test_a_prompt_that_does_not_fit_has_the_code_that_clients_look_for(server: Server) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 8}
    for prompt in ("many words " * 3000, "x" * 90_000, [5] * 2041):
        with pytest.raises(openai.BadRequestError) as refused:
            server.client.completions.create(**asked, prompt=prompt)
        assert (refused.value.param, refused.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as refused:
        server.client.chat.completions.create(**asked, messages=[{"role": "user", "content": "many words " * 3000}])
    assert (refused.value.param, refused.value.code) == ("messages", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as refused:
        server.client.completions.create(**asked, prompt="")
    assert refused.value.code is None


def test_a_chat_is_what_the_decoder_answers(server: Server, decoder: Decoder) -> None:
    talk: Any = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": part} for part in (QUESTIONS[0][:9], QUESTIONS[0][9:])]},
    ]
    answer = server.client.chat.completions.create(model="tiny", messages=talk, max_completion_tokens=48, max_tokens=1)
    plain = [{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTIONS[0]}]
    (expected,) = decoder.generate([decoder.prompt_from_messages(plain)], decoder.config(max_new_tokens=48))
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
    assert choice.model_extra is not None
    assert choice.model_extra["lopa"]["stop_reason"] == expected.stop_reason


def test_a_history_with_calls_of_tools_is_answered(server: Server, decoder: Decoder) -> None:
    """As openai's client sends it back: the call has no content, and its arguments are text."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "5"}]},
    ]
    answer = server.client.chat.completions.create(model="tiny", messages=messages, max_tokens=8)  # type: ignore[arg-type]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(decoder.prompt_from_messages(messages))


def test_completions_of_texts_and_ids(server: Server, decoder: Decoder) -> None:
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


def test_copies_are_drawn_with_seeds_of_their_own(server: Server, decoder: Decoder) -> None:
    prompts = QUESTIONS[:2]
    asked: Any = {"model": "tiny", "prompt": prompts, "max_tokens": 24, "temperature": 1.0, "n": 3, "seed": 2**63 - 2}
    answer = server.client.completions.create(**asked)
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


def test_without_a_seed_another_one_is_drawn(server: Server) -> None:
    asked: Any = {"model": "tiny", "prompt": QUESTIONS[0], "max_tokens": 24, "temperature": 1.0}
    first, second = (server.client.completions.create(**asked).choices[0].model_extra for _ in range(2))
    assert first is not None
    assert second is not None
    assert first["lopa"]["seed"] != second["lopa"]["seed"]


def test_greedy_copies_are_decoded_once(server: Server) -> None:
    server.until_idle()
    before = server.metric("lopa_round_seconds_count")
    one = server.client.completions.create(model="tiny", prompt=QUESTIONS[0], max_tokens=32)
    alone = server.metric("lopa_round_seconds_count") - before
    three = server.client.completions.create(model="tiny", prompt=QUESTIONS[0], max_tokens=32, n=3)
    assert server.metric("lopa_round_seconds_count") - before == 2 * alone
    assert server.metric('lopa_round_rows_total{kind="real"') > 0
    assert [choice.text for choice in three.choices] == 3 * [one.choices[0].text]


def test_options_that_openai_lacks(server: Server, decoder: Decoder) -> None:
    ours: dict[str, Any] = {"strategy": "lopa", "branches": 3, "window": "block_causal", "block_size": 16}
    answer = server.client.chat.completions.create(
        model="tiny", messages=TALK, max_tokens=40, extra_body={"lopa": {**ours, "deadline": 40}}
    )
    (expected,) = decoder.generate([decoder.prompt_from_messages(TALK)], decoder.config(max_new_tokens=40, **ours))
    assert answer.choices[0].message.content == expected.text
    assert answer.usage is not None
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["lopa"]["steps"] == expected.steps


def test_stops_end_the_answer(server: Server) -> None:
    whole = server.client.completions.create(model="tiny", prompt=QUESTIONS[0], max_tokens=48).choices[0].text
    stop = whole[5:8]
    for given in (stop, [stop, "never there"]):
        (choice,) = server.client.completions.create(
            model="tiny", prompt=QUESTIONS[0], max_tokens=48, stop=given
        ).choices
        assert (choice.text, choice.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_a_deadline_gives_what_is_committed(server: Server) -> None:
    (choice,) = server.client.completions.create(
        model="tiny",
        prompt=QUESTIONS[0],
        max_tokens=1024,
        extra_body={"lopa": {"strategy": "vanilla", "stop_at_eos": False, "deadline": 0.3}},
    ).choices
    assert choice.finish_reason == "length"
    assert choice.model_extra is not None
    assert choice.model_extra["lopa"]["stop_reason"] == "time_limit"


def test_log_probabilities_are_those_of_the_step_that_decided(server: Server, decoder: Decoder) -> None:
    (expected,) = decoder.generate([QUESTIONS[0]], decoder.config(max_new_tokens=24, logprobs=True))
    (plain,) = server.client.completions.create(model="tiny", prompt=QUESTIONS[0], max_tokens=24, logprobs=0).choices
    assert plain.logprobs is not None
    assert expected.logprobs is not None
    assert plain.logprobs.token_logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert plain.logprobs.tokens == [decoder.tokenizer.decode([each]) for each in expected.token_ids]
    asked: Any = {"model": "tiny", "messages": TALK, "max_tokens": 24, "logprobs": True}
    talk = decoder.prompt_from_messages(TALK)
    (expected,) = decoder.generate([talk], decoder.config(max_new_tokens=24, logprobs=True))
    (chat,) = server.client.chat.completions.create(**asked).choices
    assert chat.logprobs is not None
    assert chat.logprobs.content is not None
    assert expected.logprobs is not None
    assert [each.logprob for each in chat.logprobs.content] == pytest.approx(expected.logprobs, abs=1e-4)
    *_, last = server.client.chat.completions.create(**asked, stream=True)
    assert last.choices[0].logprobs is not None
    assert last.choices[0].logprobs.content == chat.logprobs.content, "a stream has them at its end"


def test_every_answer_has_an_id_in_its_headers(server: Server) -> None:
    raw = server.client.chat.completions.with_raw_response.create(model="tiny", messages=TALK, max_tokens=1)
    assert raw.headers["x-request-id"] == raw.parse().id


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_form_that_is_asked_for(server: Server, stream: bool) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    for wanted in (json_schema({**schema, "additionalProperties": False}), {"type": "json_object"}):
        answer: Any = server.client.chat.completions.create(
            model="tiny", messages=TALK, max_tokens=60, stream=stream, response_format=wanted
        )
        if stream:
            text = "".join(part.choices[0].delta.content or "" for part in answer if part.choices)
        else:
            assert answer.choices[0].finish_reason == "stop"
            text = answer.choices[0].message.content
        assert isinstance(json.loads(text), dict)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        ({"response_format": json_schema({"not": {}})}, "response_format"),
        ({"response_format": json_schema({"const": "long" * 99}), "max_tokens": 20}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -1}, "frequency_penalty"),
        ({"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1025}, "max_tokens"),
        ({"max_completion_tokens": 1025}, "max_completion_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": "2"}, "n"),
        ({"stop": 100 * ["x"]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x" * 5000]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 5}, "stream_options"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options"),
        ({"branches": 3}, "branches"),
        ({"top_k": 1.5}, "top_k"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": {"not": {}}}, "guided_json"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"lopa": {"brunches": 3}}, "lopa.brunches"),
        ({"lopa": {"branches": 9}}, "lopa.branches"),
        ({"lopa": {"branches": 0}}, "lopa.branches"),
        ({"lopa": {"branches": 2, "strategy": "d2f"}}, "lopa"),
        ({"lopa": {"strategy": "best"}}, "lopa.strategy"),
        ({"lopa": {"time_limit": 51}}, "lopa.time_limit"),
        ({"lopa": {"deadline": 51}}, "lopa.deadline"),
        ({"lopa": {"deadline": "soon"}}, "lopa.deadline"),
        ({"lopa": {"max_new_tokens": 1025}}, "lopa.max_new_tokens"),
        ({"lopa": [1]}, "lopa"),
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": ["Hello"]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": IMAGE}, "messages"),
        ({"messages": [{"role": "user", "content": "many words " * 3000}]}, "messages"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_done_is_refused_by_name(server: Server, wrong: dict[str, Any], param: str) -> None:
    answer = server.http.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": TALK, "max_tokens": 4, **wrong}
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert "expected" in error["message"]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["text", 5]}, "prompt"),
        ({"prompt": [[1, 2], "text", True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["x"] * 9}, "prompt"),
        ({"prompt": ["x"] * 3, "n": 3}, "n"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": [1] * 1100}, "prompt"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_cannot_be_completed_is_refused_by_name(server: Server, wrong: dict[str, Any], param: str) -> None:
    answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": "2 + 2", "max_tokens": 1024, **wrong})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"[" * 50_000, b'{"a": NaN}', b'{"a": "\\ud8']
)
def test_what_is_no_object_is_refused(server: Server, body: bytes) -> None:
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


def test_unknown_fields_that_new_clients_send_mean_nothing(server: Server) -> None:
    body = {"model": "tiny", "messages": TALK, "max_tokens": 4, "user": "me", "metadata": {}, "verbosity": "low"}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200


def test_a_body_that_is_too_large_is_refused(server: Server) -> None:
    body = json.dumps({"model": "tiny", "prompt": "x" * 200_000}).encode()
    for content in (body, iter([body[:100_000], body[100_000:]])):  # its length known, and in chunks
        answer = server.http.post("/v1/completions", content=content)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_a_prompt_that_comes_again_is_counted_as_found(server: Server) -> None:
    body = {"model": "tiny", "prompt": "found again", "max_tokens": 2, "n": 2, "lopa": {"window": "block_causal"}}
    used = [server.http.post("/v1/completions", json=body).json()["usage"] for _ in range(2)]
    assert [each["prompt_tokens_details"]["cached_tokens"] for each in used] == [0, used[0]["prompt_tokens"]]
    full = server.http.post("/v1/completions", json={**body, "lopa": None}).json()["usage"]
    assert full["prompt_tokens_details"] == {"cached_tokens": 0}


def test_fields_of_other_servers_do_what_they_say(server: Server) -> None:
    def answered(**fields: Any) -> Any:
        answer = server.http.post("/v1/completions", json={"model": "tiny", "prompt": "2 + 2", **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    fields: dict[str, Any]
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema["additionalProperties"] = False
    for fields in (
        {"guided_json": schema},
        {"guided_json": json.dumps(schema)},
        {"structured_outputs": {"json": schema}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"json_schema": schema},
    ):
        assert set(json.loads(answered(**fields, max_tokens=60)["text"])) == {"n"}
    choices = ["a.b", "(c)", "d|e\n"]
    for fields in ({"guided_choice": choices}, {"structured_outputs": {"choice": choices}}):
        drawn = {answered(**fields, max_tokens=20, temperature=5.0, seed=seed)["text"] for seed in range(4)}
        assert drawn <= set(choices)
    for fields in ({"guided_regex": "[xy]{3}"}, {"regex": "[xy]{3}"}, {"structured_outputs": {"regex": "[xy]{3}"}}):
        assert re.fullmatch("[xy]{3}", answered(**fields, max_tokens=20)["text"])
    for fields in ({"guided_grammar": 'start: "one" | "two"'}, {"ebnf": 'root ::= "one" | "two"'}):
        assert answered(**fields, max_tokens=20)["text"] in ("one", "two")
    assert answered(ignore_eos=True, max_tokens=200)["lopa"]["tokens"] == 200
    assert answered(n_predict=5, ignore_eos=True)["lopa"]["tokens"] == 5
    hot = {"temperature": 3.0, "seed": 2, "max_tokens": 30}
    ones = [answered(**hot, **fields)["text"] for fields in ({"top_k": 1}, {"lopa": {"top_k": 1}})]
    free = [answered(**hot, **fields)["text"] for fields in ({"top_k": 0}, {"top_k": -1}, {"top_k": None}, {})]
    assert ones[0] == ones[1] != free[0]
    assert len(set(free)) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_length_that_no_prompt_leaves_room_for_is_named_as_the_client_did(
    unbounded: Server, name: str, stream: bool
) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "1" * 20}]
    body = {"model": "tiny", "messages": messages, "stream": stream}
    used = unbounded.http.post("/v1/chat/completions", json={"model": "tiny", "messages": messages, "max_tokens": 1})
    prompt = used.json()["usage"]["prompt_tokens"]
    for asked in (5000, 2048):
        error = refused(unbounded, "/v1/chat/completions", {**body, name: asked, "n": 2})
        assert (error["param"], error["code"]) == (name, "context_length_exceeded")
        assert error["message"].splitlines() == [
            f"{name} is {asked}, but this model has 2048 positions for prompt and answer together (prompt: {prompt})",
            f"  expected: at most {2048 - prompt} with this prompt",
            f"  what to do: lower {name}",
        ]
    for wrong in (0, -3, 1.5, True):
        error = refused(unbounded, "/v1/chat/completions", {**body, name: wrong})
        assert error["param"] == name
        assert error["message"].startswith(f"{name} {wrong!r}\n")
        assert "max_new_tokens" not in error["message"]


def test_a_prompt_that_is_too_long_is_named_and_which_of_several(unbounded: Server) -> None:
    short, long, room = [5] * 30, [6] * 2040, "this model has 2048 positions for prompt and answer together"
    body = {"model": "tiny", "max_tokens": 20}
    error = refused(unbounded, "/v1/completions", {**body, "prompt": long})
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    assert error["message"].startswith(f"the prompt has 2040 tokens, but {room} (max_tokens: 20)\n")
    assert "at most 2028 tokens with this max_tokens" in error["message"]
    for copies in (1, 2):
        several = {**body, "prompt": [short, long, short], "n": copies, "temperature": copies - 1.0}
        error = refused(unbounded, "/v1/completions", several)
        assert error["message"].startswith("in prompt 1, counted from 0: the prompt has 2040 tokens")
    error = refused(unbounded, "/v1/completions", {**body, "prompt": long, "n": 2, "temperature": 1.0})
    assert error["message"].startswith("the prompt has 2040 tokens"), "there is one prompt"
    error = refused(unbounded, "/v1/completions", {"model": "tiny", "prompt": long})
    assert "(max_tokens: 256)" in error["message"], "what nobody asked for, by its usual name"
    error = refused(unbounded, "/v1/completions", {"model": "tiny", "prompt": [5] * 3000, "max_tokens": 5000})
    assert error["param"] == "max_tokens"
    assert "lower max_tokens and shorten the prompt" in error["message"]
    error = refused(unbounded, "/v1/completions", {"model": "tiny", "prompt": short, "lopa": {"max_new_tokens": 3000}})
    assert error["param"] == "lopa.max_new_tokens"
    assert error["message"].startswith("lopa.max_new_tokens is 3000, but")


def refused(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = server.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]
