"""Fields of other servers: mapped to lopa options, accepted if neutral, else rejected by name."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from lopa.runtime.errors import FieldError
from lopa.serve.openai.body_options import CHATS, COMPLETIONS, PROMPT_FIELDS, options_from_body
from lopa.serve.openai.foreign_options import IGNORED, MAPPED, NEUTRAL
from lopa.serve.openai.request import AnswerRequest, request_from_body
from lopa.serve.protocols.messages_request import request_from_messages
from lopa.serve.protocols.responses_request import request_from_responses
from lopa.serve.serve_limits import ServeLimits

SCHEMA = {"type": "object"}
ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"guided_json": SCHEMA}, {"json_schema": SCHEMA}),
    ({"guided_regex": "a+"}, {"regex": "a+"}),
    ({"guided_choice": ["a.b", "c"]}, {"regex": r"a\.b|c"}),
    ({"structured_outputs": {"json": SCHEMA, "regex": None, "backend": "auto"}}, {"json_schema": SCHEMA}),
    ({"structured_outputs": {"choice": ["a", "b"], "disable_any_whitespace": False}}, {"regex": "a|b"}),
    ({"structured_outputs": {}}, {}),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
    ({"response_format": {"type": "regex", "value": "a"}}, {"regex": "a"}),
    ({"response_format": {"type": "text", "json_schema": None}}, {}),
    ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ({"top_k": 5}, {"top_k": 5}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"ignore_eos": True}, {"stop_at_eos": False}),
    ({"n_predict": -1}, {}),
    ({"n_predict": 7, "max_tokens": 7}, {"max_new_tokens": 7}),
    ({"repeat_penalty": 1, "length_penalty": 1.0, "frequency_penalty": None}, {}),
    (
        {"min_p": 0.1, "frequency_penalty": 0, "logit_bias": []},
        {"min_p": 0.1, "frequency_penalty": 0, "logit_bias": {}},
    ),
    ({"presence_penalty": 2, "repetition_penalty": 1.1}, {"presence_penalty": 2, "repetition_penalty": 1.1}),
    ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100}}),
    ({"skip_special_tokens": True, "stop_token_ids": [7], "add_generation_prompt": True}, {"stop_token_ids": [7]}),
]
REJECTED: list[tuple[dict[str, Any], str]] = [
    ({"repeat_penalty": 1.05}, "repeat_penalty"),
    ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
    ({"top_k": -2}, "top_k"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"n_predict": 7, "max_tokens": 8}, "max_tokens"),
    ({"guided_choice": ["a", ""]}, "guided_choice"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
    ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}}, "structured_outputs"),
    ({"structured_outputs": {"jsn": SCHEMA}}, "structured_outputs"),
    ({"guided_json": SCHEMA, "response_format": {"type": "json_object", "schema": {}}}, "response_format"),
    ({"response_format": {"type": "regex"}}, "response_format"),
    ({"response_format": {"type": "text", "shema": 1}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "nam": "a"}}}, "response_format"),
    ({"diffusion_max_steps": 5}, "diffusion_max_steps"),
]


@pytest.mark.parametrize("endpoint", [CHATS, COMPLETIONS])
def test_equivalent_fields_are_mapped(endpoint: str) -> None:
    for body, expected in ACCEPTED:
        found = options_from_body(body, endpoint)
        assert found.values == expected, body
        assert set(found.params.values()) <= set(body)


@pytest.mark.parametrize(
    ("endpoint", "prompt", "accepted"),
    [
        (CHATS, [], [False]),
        (COMPLETIONS, "text", [True]),
        (COMPLETIONS, ["a", "b"], [True]),
        (COMPLETIONS, [5, 6], [True, False]),
        (COMPLETIONS, [[5], [6]], [True, False]),
    ],
)
def test_special_tokens_are_added_as_in_vllm(endpoint: str, prompt: Any, accepted: list[bool]) -> None:
    for value in (True, False):
        body = {PROMPT_FIELDS[endpoint]: prompt, "add_special_tokens": value}
        if value in accepted:
            assert options_from_body(body, endpoint).values == {}
            continue
        with pytest.raises(FieldError, match="as token ids") as error:
            options_from_body(body, endpoint)
        assert error.value.param == "add_special_tokens"


@pytest.mark.parametrize(("body", "param"), REJECTED, ids=lambda value: str(value)[:60])
def test_unsupported_values_are_rejected_by_name(body: dict[str, Any], param: str) -> None:
    for endpoint in (CHATS, COMPLETIONS):
        with pytest.raises(FieldError) as caught:
            options_from_body(body, endpoint)
        assert caught.value.param in body
        assert caught.value.param == param or len(body) > 1


def test_each_field_is_known_once() -> None:
    assert not NEUTRAL.keys() & MAPPED.keys()
    for name in IGNORED:
        assert options_from_body({name: "anything"}, CHATS).values == {}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("max_tokns", "did you mean max_tokens?"),
        ("guided_jsn", "did you mean guided_json?"),
        ("branches", 'did you mean "lopa": {"branches": ...}?'),
        ("steps", 'did you mean "lopa": {"steps": ...}?'),
        ("block_length", 'did you mean "lopa": {"block_size": ...}?'),
        ("previous_response_id", "send the whole conversation"),
        ("prompt_logprobs", "use /v1/score"),
        ("zzz", "remove it"),
    ],
)
def test_unknown_fields_are_refused_with_the_nearest_name(name: str, remedy: str) -> None:
    for endpoint in (CHATS, COMPLETIONS):
        assert options_from_body({name: None}, endpoint).values == {}
        with pytest.raises(FieldError, match=re.escape(f"unknown field '{name}'")) as caught:
            options_from_body({name: 1}, endpoint)
        assert caught.value.param == name
        assert remedy in caught.value.remedy


def request_from_chat(body: dict[str, Any], limits: ServeLimits) -> AnswerRequest:
    return request_from_body(body, CHATS, limits)


@pytest.mark.parametrize(
    ("name", "read", "nearest"),
    [
        ("max_output_token", request_from_responses, "max_output_tokens"),
        ("stop_sequence", request_from_messages, "stop_sequences"),
        ("cache_slat", request_from_chat, "cache_salt"),
    ],
)
def test_the_nearest_name_is_among_all_fields_of_the_endpoint(
    name: str, read: Callable[..., AnswerRequest], nearest: str
) -> None:
    turn = [{"role": "user", "content": "a"}]
    own = {"input": "a"} if read is request_from_responses else {"messages": turn, "max_tokens": 5}
    with pytest.raises(FieldError) as caught:
        read({"model": "m", **own, name: 1}, ServeLimits())
    assert f"did you mean {nearest}?" in caught.value.remedy


def test_all_fields_of_openai_and_anthropic_are_listed() -> None:
    """Check that only the fields below are refused, which would change the answer or need a store."""
    api = (ChatParams, CompletionCreateParamsBase, ResponseCreateParamsBase, MessageCreateParamsBase)
    fields = {name for kind in api for name in kind.__annotations__}
    refused = {name for name in fields - NEUTRAL.keys() - IGNORED if _is_unknown(name)}
    read = {"prompt", "input", "instructions", "text", "include", "max_output_tokens"}  # by the other protocols
    read |= {"system", "stop_sequences", "output_config", "thinking"}
    assert refused - read == {
        *("audio", "moderation", "web_search_options", "image", "conversation", "previous_response_id"),
        *("container", "compaction", "mcp_servers", "thread"),
    }


def _is_unknown(name: str) -> bool:
    try:
        options_from_body({name: "1"}, CHATS)
    except FieldError as error:
        return "unknown field" in error.received
    return False
