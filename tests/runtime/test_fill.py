"""Holes of real texts: the given text stays, tokens at boundaries are healed, and streams, engine and batch agree."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lopa.runtime import Decoder, Engine, Step, TextEvent
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.encoded_holes import encode_holes, text_of_token
from lopa.runtime.text.text_with_holes import Hole, text_with_holes

TEXTS = (
    "def mean(values):\n    total = sum(values)\n\treturn total / len(values)\n",
    "Question: There are 12 apples 🍎 and 3 crates.\nAnswer: 12 * 3 = 36 👩‍👩‍👧.",
    '{"name": "Zoë", "größe": [1, 2,   3], "日本": null}',
    "   \n\n\t  x  \n",
)


@pytest.fixture(params=["llada", "dream"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    found: Decoder = request.getfixturevalue(request.param)
    return found


def random_hole(rng: random.Random) -> Hole:
    return Hole(rng.randint(1, 6))


def cut(rng: random.Random, text: str, holes: int, hole: Callable[[random.Random], Hole] = random_hole) -> list[Any]:
    """Return `text` with spans replaced by holes, at any characters."""
    places = sorted(rng.sample(range(1, len(text) + 1), min(2 * holes, len(text) // 2 * 2)))
    parts: list[Any] = [text[: places[0]]]
    for start, end in zip(places[::2], [*places[2::2], len(text)], strict=True):
        del start
        parts += [hole(rng), text[end - rng.randint(1, 3) : end]]
    return parts


def assert_given_stays(parts: list[Any], result: GenerationResult) -> None:
    assert result.holes is not None
    assert result.filled_text is not None
    fills = iter(result.holes)
    assert result.filled_text == "".join(next(fills) if isinstance(part, Hole) else part for part in parts)
    assert next(fills, None) is None


@pytest.mark.parametrize("seed", range(2))
def test_given_text_stays_as_it_is(decoder: Decoder, seed: int) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = rng.choice([{}, {"strategy": "lopa", "branches": 3}, {"block_size": 3}])
    for text in TEXTS:
        parts = cut(rng, text, rng.randint(1, 3))
        result = decoder.fill(parts, **options)
        assert_given_stays(parts, result)
        assert result.stop_reason in ("length", "eos")
        assert result.tokens == len(result.token_ids) >= sum(part.tokens for part in parts if isinstance(part, Hole))


@pytest.mark.parametrize("options", [{}, {"strategy": "lopa", "branches": 3}, {"logprobs": True, "top_logprobs": 2}])
def test_a_range_is_filled_as_a_hole_of_the_chosen_length(decoder: Decoder, options: dict[str, Any]) -> None:
    """The ranges of both holes grow together, and tokens at their edges are healed."""
    parts = ["The ans", Hole(1, 9), "dies are gone. Tot", Hole(2, 6), "!"]
    steps: list[Step] = []
    found = decoder.fill(parts, on_step=steps.append, **options)
    compared = [[round(1 + share * 8), round(2 + share * 4)] for share in np.linspace(0, 1, 8).tolist()]
    assert len(steps[0].branches) == len(steps[0].confidences) == len(compared)
    assert steps[0].winner == int(np.argmax(steps[0].confidences))
    first, second = compared[steps[0].winner]
    fixed = decoder.fill(["The ans", Hole(first), "dies are gone. Tot", Hole(second), "!"], **options)
    assert (found.filled_text, found.holes, found.token_ids) == (fixed.filled_text, fixed.holes, fixed.token_ids)
    assert found.prompt_ids == fixed.prompt_ids
    assert found.logprobs == (None if fixed.logprobs is None else pytest.approx(fixed.logprobs, rel=1e-3, abs=1e-4))
    assert_given_stays(parts, found)
    with Engine(decoder) as engine:
        text = text_with_holes(parts)
        handles = [engine.submit(text, **options), engine.submit(text_with_holes("a <hole:2> b"))]
        assert handles[0].result(60).filled_text == found.filled_text
    events = list(decoder.stream(text_with_holes(parts), drafts=True, **options))
    streamed = "".join(event.text for event in events if isinstance(event, TextEvent))
    assert streamed == found.text


def test_a_token_at_a_boundary_is_decided_again(decoder: Decoder) -> None:
    """The beginning of "answer" and the end of "candies" are given; whole words continue and end them."""
    manifest, tokenizer = decoder.bundle.manifest, decoder.tokenizer
    text = text_with_holes(["The ans", Hole(3), "dies are gone"])
    encoded = encode_holes(text, tokenizer, manifest)
    start, end = encoded.holes[0]
    first, last = encoded.boundary_token_at[start], encoded.boundary_token_at[end - 1]
    assert (first.is_start, last.is_start) == (True, False)
    assert "The ans".endswith(first.text)
    assert "dies are gone".startswith(last.text)
    allowed = [each for each in range(manifest.dimensions.vocab_size) if encoded.allows(start, each)]
    assert first.token in allowed
    assert all(text_of_token(tokenizer, each).startswith(first.text) for each in allowed)
    assert len(allowed) > 1
    ends = [each for each in range(manifest.dimensions.vocab_size) if encoded.allows(end - 1, each)]
    assert all(text_of_token(tokenizer, each).endswith(last.text) for each in ends)
    assert len(ends) > 1
    result = decoder.fill(text.parts)
    assert result.token_ids[0] in allowed
    assert result.token_ids[-1] in ends


def test_an_end_of_text_ends_its_hole(dream: Decoder) -> None:
    """The toy ends a hole early, and the given text behind it stays."""
    result = dream.fill(["The answer is 5.\n", Hole(10), "\n\nQuestion: 2?\nAnswer:"])
    end = result.token_ids.index(dream.bundle.manifest.special_tokens.eos)
    assert result.filled_text == f"The answer is 5.\n{result.text}\n\nQuestion: 2?\nAnswer:"
    assert result.text == dream.tokenizer.decode(list(result.token_ids[:end])).removeprefix("\n")
    assert end < 10
    assert result.stop_reason == "eos"
    two = dream.fill(["The answer is 5.\n", Hole(10), "\n\nQuestion: 2?\nAnswer:", Hole(2), " 4"])
    assert two.holes is not None
    assert two.holes[0] == "#### 5"
    assert two.holes[1]
    assert two.stop_reason == "length", "only one of the holes has an end"


def test_equal_ids_with_other_boundaries_are_decoded_apart(llada: Decoder) -> None:
    """The engine decodes equal requests once. A hole of given ids has no boundary tokens, and other tokens."""
    healed = text_with_holes(["The ans", Hole(3), "dies are gone"])
    encoded = encode_holes(healed, llada.tokenizer, llada.bundle.manifest)
    ((start, end),) = encoded.holes
    ids = encoded.ids.tolist()
    plain = text_with_holes([ids[:start], Hole(end - start), ids[end:]])
    alone = [llada.generate(prompt).token_ids for prompt in (healed, plain)]
    assert alone[0] != alone[1]
    with Engine(llada) as engine:
        handles = engine.submit_many([healed, plain, healed])
        assert [handle.result(60.0).token_ids for handle in handles] == [alone[0], alone[1], alone[0]]


def test_a_stop_string_ends_a_hole(llada: Decoder) -> None:
    parts = ["Question: 2 + 3?\nAnswer: ", Hole(16), " Done."]
    whole = llada.fill(parts)
    stop = whole.text[len(whole.text) // 2 :][:2]
    result = llada.fill(parts, stop=[stop])
    assert result.text == whole.text[: whole.text.index(stop)]
    assert (result.stop_reason, result.stop_string) == ("stop_string", stop)
    assert result.filled_text == f"{parts[0]}{result.text}{parts[2]}"


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ("a<hole:3>b", {"choices": ["a", "b"]}, "choices"),
        (
            "a<hole:3>b",
            {"attention": "block_causal", "cache": "blocks"},
            "holes for a model that attends to earlier text",
        ),
        ("a<hole:3>b<hole:2>", {"stop": ["x"]}, "several holes with stop strings"),
        ("a<hole:4000>b<hole:4000>c<hole:4000>d", {}, "but this model has"),
        (["a", Hole(2), [99999]], {}, "invalid ids"),
        ("a<hole:2-4>b", {"block_size": 2}, "holes that are filled in turn"),
        ("a<hole:2-4>b", {"cache": "dual"}, "ranges of lengths with cache 'dual'"),
        ("nothing", {}, "a text without a hole"),
    ],
    ids=str,
)
def test_what_holes_do_not_support_is_refused(llada: Decoder, parts: Any, options: Any, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        llada.fill(parts, **options)
    assert message in caught.value.received
