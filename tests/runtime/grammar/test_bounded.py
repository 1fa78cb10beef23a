"""Shortest matches of a regular expression, compared with Python's over all texts of a small alphabet."""

import re
from itertools import product

import pytest

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.bounded import BoundedExpression
from lopa.runtime.grammar.grammar_source import matcher_from_request, request_from_config
from lopa.runtime.grammar.llguidance_library import byte_tokenizer
from lopa.runtime.grammar.state import initial_state
from lopa.runtime.grammar.vocabulary import Vocabulary

LETTERS = "ab/"


@pytest.mark.parametrize(
    "expression",
    ["a*b", "(ab|ba){2}", "[ab]{1,3}/b", "(a|b/)*/", "a?b?a?/a", ".{2,4}b.{0,2}a", "(aab|a)(b|/)+a", "", "a{3}|b{2}"],
)
def test_endings_are_shortest(expression: str) -> None:
    texts = ["".join(each) for size in range(7) for each in product(LETTERS, repeat=size)]
    matching = [text for text in texts if re.fullmatch(expression, text)]
    bounded = BoundedExpression(byte_tokenizer(), expression)
    for begun in [text for text in texts if len(text) < 3]:
        shortest = min((len(text) - len(begun) for text in matching if text.startswith(begun)), default=None)
        found = bounded.ending(begun.encode(), 8)
        if shortest is None:
            assert found is None
        else:
            assert found is not None
            assert re.fullmatch(expression, begun + found.decode())
            assert len(found.decode()) == shortest


def test_length_is_in_characters() -> None:
    bounded = BoundedExpression(byte_tokenizer(), "é{5}|a{6}")
    assert bounded.ending(b"", 8) == "ééééé".encode()
    assert bounded.ending("éé".encode() + b"\xc3", 8) == b"\xa9" + "éé".encode()


def test_search_is_limited() -> None:
    bounded = BoundedExpression(byte_tokenizer(), "a{1000}")
    assert bounded.ending(b"", 50) is None
    assert bounded.ending(b"a" * 990, 50) == b"a" * 10
    assert BoundedExpression(byte_tokenizer(), "(a").ending(b"", 50) is None


@pytest.mark.parametrize(
    "expression", [r"(?s:.{1,400})\n#### [0-9]{1,4}", r"x{5}.{1,300}<end>", r"(?s:.{1,900})Z(?s:.{3,500})Y", "é{9}"]
)
def test_answer_within_free_text_is_found(vocabulary: Vocabulary, expression: str) -> None:
    state = initial_state(
        matcher_from_request(request_from_config(GenerationConfig(regex=expression), 0), vocabulary), 24
    )
    assert re.fullmatch(expression, state.ending.decode())
