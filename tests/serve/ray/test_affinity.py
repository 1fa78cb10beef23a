"""Requests that may share rows have one key; others have none, or another."""

from typing import Any

import pytest

from lopa.serve.openai.options import CHATS, COMPLETIONS
from lopa.serve.ray.affinity import Route, route_of_body
from lopa.serve.ray.models import ServedModels

MODELS = ServedModels({"full": {}, "causal": {}}, {"full": "full", "causal": "block_causal"})
ASKED: dict[str, Any] = {"model": "causal", "prompt": "2 + 3"}


def key(body: dict[str, Any], path: str = COMPLETIONS) -> str:
    return route_of_body(body, path, MODELS).key


def test_the_same_prompt_has_the_same_key_whatever_else_is_asked() -> None:
    others = [{"max_tokens": 5}, {"stream": True}, {"temperature": 0}, {"seed": 3}, {"lopa": {"branches": 2}}, {"n": 2}]
    assert key(ASKED)
    assert {key({**ASKED, **other}) for other in others} == {key(ASKED)}


@pytest.mark.parametrize(
    "other",
    [{"prompt": "2 + 4"}, {"prompt": [2, 3]}, {"prompt": ["2 + 3"]}, {"temperature": 0.5}],
    ids=str,
)
def test_another_prompt_or_temperature_has_another_key(other: dict[str, Any]) -> None:
    assert key({**ASKED, **other}) not in ("", key(ASKED))


def test_chats_by_their_messages() -> None:
    one, other = ([{"role": "user", "content": text}] for text in ("2 + 3", "2 + 4"))
    assert key({"model": "causal", "messages": one}, CHATS) != key({"model": "causal", "messages": other}, CHATS) != ""
    turned = [{"content": "2 + 3", "role": "user"}]
    assert key({"model": "causal", "messages": one}, CHATS) == key({"model": "causal", "messages": turned}, CHATS)


def test_no_key_where_rows_cannot_be_shared() -> None:
    assert route_of_body({**ASKED, "lopa": {"window": "full"}}, COMPLETIONS, MODELS) == Route("causal", "")
    assert route_of_body({**ASKED, "model": "full"}, COMPLETIONS, MODELS) == Route("full", "")
    assert key({**ASKED, "model": "full", "lopa": {"window": "block_causal"}}) not in ("", key(ASKED))
    assert route_of_body(ASKED, "/v1/models", MODELS) == Route("causal", "")


@pytest.mark.parametrize("body", [{}, {"model": "nobody"}, {"model": ["causal"]}, {"model": None}], ids=str)
def test_what_names_no_model_goes_to_the_first(body: dict[str, Any]) -> None:
    assert route_of_body(body, COMPLETIONS, MODELS) == Route("full", "")


@pytest.mark.parametrize(
    "odd",
    [{"prompt": 2**200}, {"prompt": "\ud800"}, {"temperature": "hot"}, {"lopa": 5}, {"lopa": {"window": 7}}],
    ids=str,
)
def test_nonsense_is_left_to_who_answers(odd: dict[str, Any]) -> None:
    assert route_of_body({**ASKED, **odd}, COMPLETIONS, MODELS).model == "causal"
