"""Holes whose text satisfies a grammar: documents with a schema, forms with an expression per field, and errors."""

import json
import random
from typing import Any

import jsonschema
import pytest
from tools.random_schemas import random_schema

from lopa.runtime import Decoder
from lopa.runtime.errors import BadInputError, GrammarRefusedError
from lopa.runtime.text.text_with_holes import Hole

pytest.importorskip("llguidance")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"strategy": "lopa", "branches": 3},
    {"strategy": "threshold", "skip_threshold": 0.3},
)
PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Zoe", "Anna", "Annabel"]},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}


@pytest.fixture(params=["llada", "dream"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    found: Decoder = request.getfixturevalue(request.param)
    return found


def cut(rng: random.Random, decoder: Decoder, document: str, holes: int, more: int) -> list[Any]:
    """Return `document` with spans replaced by holes of their tokens and up to `more` further ones."""
    places = sorted(rng.sample(range(1, len(document) + 1), 2 * holes))
    parts: list[Any] = [document[: places[0]]]
    for start, end, following in zip(places[::2], places[1::2], [*places[2::2], len(document)], strict=True):
        tokens = len(decoder.tokenizer.encode(document[start:end], add_bos=False))
        parts += [Hole(tokens + rng.randint(0, more)), document[end:following]]
    return parts


@pytest.mark.parametrize("seed", range(3))
def test_documents_with_holes_satisfy_their_schemas(decoder: Decoder, seed: int) -> None:
    rng = random.Random(seed)
    tried = filled = 0
    for _ in range(6):
        schema = random_schema(rng)
        try:
            document = decoder.generate(
                "Question:", json_schema=schema, max_new_tokens=120, temperature=1.0, seed=seed
            ).text
        except BadInputError:
            continue  # a schema without a short answer
        if len(document) < 8:
            continue
        parts = cut(rng, decoder, document, rng.randint(1, min(4, len(document) // 4)), more=3)
        tried += 1
        try:
            result = decoder.fill(parts, json_schema=schema, **rng.choice(OPTIONS))
        except GrammarRefusedError:
            continue  # the search for a text is bounded
        assert result.filled_text is not None
        jsonschema.validate(json.loads(result.filled_text), schema)
        fills = iter(result.holes or ())
        assert result.filled_text == "".join(next(fills) if isinstance(part, Hole) else part for part in parts)
        filled += 1
    assert filled >= 2
    assert tried - filled <= 2


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ('{"nam": "<hole:6>"}', {"json_schema": PERSON}, "the text before the first hole does not satisfy"),
        ('{"name": "<hole:6>", "age": 5<hole:2>}', {"json_schema": PERSON}, "hole 1 of 6 tokens cannot be filled"),
        ('{"name": <hole:4>}', {"json_schema": PERSON}, "hole 1 of 4 tokens cannot be filled"),
        (["Date: ", Hole(3, regex="[0-9]{9}-[0-9]{9}")], {}, "hole 1 of 3 tokens cannot be filled"),
        (["A ", Hole(3, regex="[0-9]"), " b ", Hole(2, regex="[0-9]{9}")], {}, "hole 2 of 2 tokens cannot be filled"),
        (["A ", Hole(3, regex="(")], {}, "unclosed group"),
        (["A ", Hole(3, regex="[0-9]")], {"regex": "A [0-9]"}, "expressions of holes, and a grammar"),
        (["A ", Hole(1, 3, regex="[0-9]")], {}, "ranges of lengths with a grammar"),
        (["A ", Hole(3, regex="[0-9]")], {"speculative": True, "strategy": "vanilla"}, "speculative with a grammar"),
        (["A ", Hole(3)], {"reasoning_budget": 3}, "holes with reasoning_budget"),
    ],
    ids=str,
)
def test_what_cannot_be_filled_is_refused(llada: Decoder, parts: Any, options: Any, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        llada.fill(parts, **options)
    assert message in caught.value.received
