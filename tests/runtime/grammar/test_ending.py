"""Endings of texts, compared with Python's own regular expressions and JSON."""

import json
import re
from typing import Any

import jsonschema
import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.ending import IDLE_COST, shortest_ending, straight_ending
from lopa.runtime.grammar.grammar_source import matcher_from_request, request_from_config
from lopa.runtime.grammar.llguidance_library import library, matcher
from lopa.runtime.grammar.state import initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary


def of_property(schema: dict[str, Any], *more: str) -> dict[str, Any]:
    names = ("a", *more)
    return {"type": "object", "properties": dict.fromkeys(names, schema), "required": list(names)}


@pytest.mark.parametrize(
    "schema",
    [
        of_property(
            {"type": "number", "exclusiveMinimum": 0.37, "maximum": 47.01}, "b"
        ),  # 0.37 alone is below the minimum
        of_property({"type": "integer", "minimum": 1, "multipleOf": 7}, "b"),
        of_property({"type": "string", "minLength": 300}),
        {"type": "array", "items": {"type": "object"}, "minItems": 40},
        {"type": "integer", "exclusiveMinimum": 7919, "multipleOf": 7919},
        {  # two patterns; a text of one may occur in the other's string
            "type": "object",
            "properties": {
                "a": {"type": "string", "pattern": "^(yes|no)$"},
                "b": {"type": "string", "pattern": "ab+c"},
            },
            "required": ["a", "b"],
        },
    ],
)
def test_straight_ending_is_an_answer(vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    matcher = matcher_from_request(request_from_config(GenerationConfig(json_schema=schema), 0), vocabulary)
    found = straight_ending(matcher.bytes, matcher.hints)
    assert found is not None
    jsonschema.Draft202012Validator(schema).validate(json.loads(found))


@pytest.mark.parametrize(
    ("grammar", "found"),
    [
        ({"grammar": "start: /.*foo.*/"}, b"foo"),
        ({"grammar": 'start: /.*/ "zzz"'}, b"zzz"),
        ({"grammar": "start: X\nX: /.*foo.*/ & /.*bar.*/"}, b"bar"),
        ({"regex": r"[^x]*hello[^x]*"}, b"hello"),
        ({"regex": r"[\s\S]*(needle|nail)"}, b"nail"),
    ],
)
def test_required_text_within_free_text_is_found(vocabulary: Vocabulary, grammar: dict[str, str], found: bytes) -> None:
    matcher = matcher_from_request(request_from_config(GenerationConfig(**grammar), 0), vocabulary)  # type: ignore[arg-type]
    assert found in initial_state(matcher, 40).ending


@pytest.mark.parametrize("grammar", ['start: "ab" start | "z"', 'start: "ab" start "c" | "z"'])
def test_cycles_are_left(vocabulary: Vocabulary, grammar: str) -> None:
    found = straight_ending(matcher(vocabulary.bytes, grammar))
    assert found is not None
    assert re.fullmatch(rb"(ab)*zc*", found)
    assert len(found) < 40


@pytest.mark.parametrize(
    ("regex", "min"), [("(abc|d)(abc|d)", 2), ("(aa|b){3}", 3), ("[0-9]{4}-x|[0-9]{2}y", 3), ("a*", 0)]
)
def test_short_ending_is_found(vocabulary: Vocabulary, regex: str, min: int) -> None:
    read = matcher(vocabulary.bytes, library().LLMatcher.grammar_from_regex(regex))
    found = shortest_ending(read, steps=4000).found
    assert found is not None
    assert re.fullmatch(regex.encode(), found)
    assert min <= len(found) < min + IDLE_COST
    assert shortest_ending(read, steps=4000, below=min).found is None or not min


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('start: "a" X\nX: /b/ & /c/', "can neither continue nor end"),
        ('start: "a" start | "b" start', "no answer to the grammar was found in 4000 steps"),
    ],
)
def test_unsatisfiable_grammar_differs_from_a_failed_search(vocabulary: Vocabulary, grammar: str, message: str) -> None:
    request = request_from_config(GenerationConfig(grammar=grammar), 0)
    with pytest.raises(BadInputError, match=message):
        initial_state(matcher_from_request(request, vocabulary), 40)
