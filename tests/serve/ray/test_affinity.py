"""Requests that may share rows have keys of their common beginnings; all others have none or other keys."""

from typing import Any

import pytest

from lopa.serve.openai.body_options import CHATS, COMPLETIONS
from lopa.serve.ray.affinity import MAX_PREFIXES, Route, ServedModels, route_from_body

MODELS = ServedModels(
    {"full": {}, "causal": {}, "sliding": {}}, {"full": "full", "causal": "block_causal", "sliding": "causal"}
)
BODY: dict[str, Any] = {"model": "causal", "prompt": "2 + 3"}


def keys(body: dict[str, Any], path: str = COMPLETIONS) -> tuple[str, ...]:
    return route_from_body(body, path, MODELS).prefixes


def chat(*texts: str, **more: Any) -> tuple[str, ...]:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return keys({"model": "causal", "messages": messages, **more}, CHATS)


def common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return the number of common keys, which begin both."""
    number = len(set(one) & set(other))
    assert one[:number] == other[:number]
    return number


def test_same_prompt_has_the_same_keys() -> None:
    others = [
        {"max_tokens": 5},
        {"temperature": 0.5},
        {"lopa": {"branches": 2}},
        {"n": 2},
        {"tools": []},
        {"prompt": ["2 + 3"]},
    ]
    assert len(keys(BODY)) == 1
    assert {keys({**BODY, **other}) for other in others} == {keys(BODY)}


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "2 + 4"},
        {"prompt": ["2 + 3 + 4"]},
        {"cache_salt": "tenant"},
        {"tools": [{"type": "function", "function": {"name": "now"}}]},
        {"model": "sliding"},
    ],
    ids=str,
)
def test_other_prompts_and_contexts_have_other_keys(other: dict[str, Any]) -> None:
    found = keys({**BODY, **other})
    assert found
    assert not set(found) & set(keys(BODY))


def test_the_next_turn_of_a_chat_has_the_keys_of_the_one_before() -> None:
    one, two = chat("2 + 3"), chat("2 + 3", "5", "and 4?")
    assert (len(one), len(two)) == (1, 3)
    assert two[:1] == one
    assert chat("2 + 3", "6", "and 4?")[:1] == one
    assert common(two, chat("2 + 3", "6", "and 4?")) == 1
    assert common(two, chat("2 + 3", "5", "and 5?")) == 2
    assert common(two, chat("2 + 4", "5", "and 4?")) == 0
    assert common(two, chat("2 + 3", "5", "and 4?", tools=[{"type": "function"}])) == 0
    turned = [{"content": "2 + 3", "role": "user"}]
    assert keys({"model": "causal", "messages": turned}, CHATS) == one


def test_long_chats_have_a_bounded_number_of_keys() -> None:
    texts = [str(each) for each in range(200)]
    one, two = chat(*texts), chat(*texts, "a", "b")
    assert len(one) == len(two) == MAX_PREFIXES
    assert one[2:] == two[:-2]
    assert len(" ".join(one)) < 2000


@pytest.mark.parametrize("kind", [str, list])
def test_growing_texts_and_ids_have_common_keys(kind: type) -> None:
    whole: Any = "abcdefgh" * 500 if kind is str else list(range(1000))
    for length in (1, 130, 600, 950):
        one, two = keys({**BODY, "prompt": whole[:length]}), keys({**BODY, "prompt": whole[: length + 5]})
        assert common(one, two) in (len(one), len(one) - 1)  # the last part may be incomplete
    changed = keys({**BODY, "prompt": whole[1:]})
    assert common(changed, keys({**BODY, "prompt": whole})) == 0


def test_no_key_without_shareable_rows() -> None:
    assert route_from_body({**BODY, "lopa": {"attention": "full"}}, COMPLETIONS, MODELS) == Route("causal")
    assert route_from_body({**BODY, "model": "full"}, COMPLETIONS, MODELS) == Route("full")
    found = keys({**BODY, "model": "full", "lopa": {"attention": "block_causal"}})
    assert found
    assert found != keys(BODY)
    assert route_from_body(BODY, "/v1/models", MODELS) == Route("causal")


@pytest.mark.parametrize("body", [{}, {"model": "unknown"}, {"model": ["causal"]}, {"model": None}], ids=str)
def test_unknown_models_go_to_the_first_one(body: dict[str, Any]) -> None:
    assert route_from_body(body, COMPLETIONS, MODELS) == Route("full")


@pytest.mark.parametrize(
    "invalid",
    [
        {"prompt": 2**200},
        {"prompt": "\ud800"},
        {"prompt": [[], {}, 5]},
        {"lopa": 5},
        {"lopa": {"attention": ["full"]}},
        {"cache_salt": 5},
    ],
    ids=str,
)
def test_invalid_bodies_are_routed_anyway(invalid: dict[str, Any]) -> None:
    assert route_from_body({**BODY, **invalid}, COMPLETIONS, MODELS).model == "causal"
