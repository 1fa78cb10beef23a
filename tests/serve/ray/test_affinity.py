"""Requests that may share rows have one key; all others have none or another one."""

from typing import Any

import pytest

from lopa.serve.openai.body_options import CHATS, COMPLETIONS
from lopa.serve.ray.affinity import Route, route_from_body
from lopa.serve.ray.served_models import ServedModels

MODELS = ServedModels({"full": {}, "causal": {}}, {"full": "full", "causal": "block_causal"})
BODY: dict[str, Any] = {"model": "causal", "prompt": "2 + 3"}


def key(body: dict[str, Any], path: str = COMPLETIONS) -> str:
    return route_from_body(body, path, MODELS).key


def test_same_prompt_has_the_same_key() -> None:
    others = [{"max_tokens": 5}, {"stream": True}, {"temperature": 0}, {"seed": 3}, {"lopa": {"branches": 2}}, {"n": 2}]
    assert key(BODY)
    assert {key({**BODY, **other}) for other in others} == {key(BODY)}


@pytest.mark.parametrize(
    "other",
    [{"prompt": "2 + 4"}, {"prompt": [2, 3]}, {"prompt": ["2 + 3"]}, {"temperature": 0.5}],
    ids=str,
)
def test_other_prompts_and_temperatures_have_other_keys(other: dict[str, Any]) -> None:
    assert key({**BODY, **other}) not in ("", key(BODY))


def test_chats_have_keys_by_messages() -> None:
    one, other = ([{"role": "user", "content": text}] for text in ("2 + 3", "2 + 4"))
    assert key({"model": "causal", "messages": one}, CHATS) != key({"model": "causal", "messages": other}, CHATS) != ""
    turned = [{"content": "2 + 3", "role": "user"}]
    assert key({"model": "causal", "messages": one}, CHATS) == key({"model": "causal", "messages": turned}, CHATS)


def test_no_key_without_shareable_rows() -> None:
    assert route_from_body({**BODY, "lopa": {"window": "full"}}, COMPLETIONS, MODELS) == Route("causal", "")
    assert route_from_body({**BODY, "model": "full"}, COMPLETIONS, MODELS) == Route("full", "")
    assert key({**BODY, "model": "full", "lopa": {"window": "block_causal"}}) not in ("", key(BODY))
    assert route_from_body(BODY, "/v1/models", MODELS) == Route("causal", "")


@pytest.mark.parametrize("body", [{}, {"model": "unknown"}, {"model": ["causal"]}, {"model": None}], ids=str)
def test_unknown_models_go_to_the_first_one(body: dict[str, Any]) -> None:
    assert route_from_body(body, COMPLETIONS, MODELS) == Route("full", "")


@pytest.mark.parametrize(
    "invalid",
    [{"prompt": 2**200}, {"prompt": "\ud800"}, {"temperature": "hot"}, {"lopa": 5}, {"lopa": {"window": 7}}],
    ids=str,
)
def test_invalid_bodies_are_routed_anyway(invalid: dict[str, Any]) -> None:
    assert route_from_body({**BODY, **invalid}, COMPLETIONS, MODELS).model == "causal"
