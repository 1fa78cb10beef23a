"""Expressions of real tokenizers and simple ones are known, others are not; checked against the library."""

import random
import time

import pytest
import tokenizers
from tests.runtime.text.tokenizer_kinds import EXPRESSIONS, random_expression
from tokenizers.pre_tokenizers import Split

from lopa.runtime.text.known_expressions import shortest_match

TEXTS = ["a" * 600, "ab" * 300, "ba" * 300 + "d", "a" * 300 + "b" * 300, "1" * 600, " \n" * 300, "A" * 300 + "é" * 300]


def matches(expression: str, text: str) -> list[str]:
    """Return what the library finds, and check that it needs less than a second, where bad expressions never end."""
    split, started = Split(tokenizers.Regex(expression), "removed", invert=True), time.process_time()
    found = [piece for piece, _ in split.pre_tokenize_str(text)]
    assert time.process_time() - started < 1, expression
    return found


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_of_real_tokenizers(name: str) -> None:
    shortest = shortest_match(EXPRESSIONS[name])
    assert shortest
    assert all(len(each) >= shortest for text in TEXTS for each in matches(EXPRESSIONS[name], text))


@pytest.mark.parametrize(
    "expression",
    [
        *("(a+)+b", "(?:a|aa)+b", "(?:a?){40}b", "a*a*b", "a+b", "a+$", "a?b?c", "a+a+", "(a)", r"(a)\1", "(?i)a"),
        *("a{2}{3}", "a{2,3}+", "a{1000}", "a+?", "a++", "a{", "{2}", "+", "*a", "^a", "a$", r"\ba", r"\X", r"\R+"),
        *("[a", "[]a]", "[[:alpha:]]", "[a&&[^b]]", "[a&&b]", "[]", "[^]", "[^]a]", "a]", "\\", "[a\\", "", "a|", "|a"),
        *(r"\s+(?!\S)+", r"\s+(?!\S)a", r"(\s+(?!\S))+", r"(?:\s*[\r\n]+)+", r"\p{N}{1,3}+b", r"\s*[\r\n]+\s+$"),
        *(
            "a||b",
            "a(",
            "|".join("a" * n for n in range(1, 34)),
            r"\s+$|a|\s+$",
            "a{٣}",
            "a{２,}",
            "a" * 20_000,
            "[" + "a-z" * 6000 + "]",
        ),
    ],
)
def test_unknown_expressions(expression: str) -> None:
    assert shortest_match(expression) is None


@pytest.mark.parametrize(
    ("expression", "shortest"),
    [
        *(("abc", 3), ("a|bc", 1), ("a?b", 1), ("a?", 0), ("a*", 0), ("ab+", 2), ("a{3,}", 3), ("a{0,3}", 0)),
        *((r"\s?[a-z]{2,4}", 2), (r"\p{N}{3}", 3), (r"\p{^L}.", 2), (r"<\|x\|>", 5), (r"[^\]\[&]+", 1), ("[a\r\n]", 1)),
        *((r"abc|\s+(?!\S)", 1), ("[\r\n]", 1), ("\\s*[\r\n]+", 1), (" {2,}", 2), ("a{3,2}", 2)),
    ],
)
def test_shortest_match(expression: str, shortest: int) -> None:
    assert shortest_match(expression) == shortest
    assert all(len(each) >= shortest for text in TEXTS for each in matches(expression, text))


def test_known_random_expressions_end_soon_and_match_no_less() -> None:
    rng, taken = random.Random(0), 0
    for _ in range(1500):
        expression = random_expression(rng)
        shortest = shortest_match(expression)
        if shortest is not None:
            taken += 1
            assert all(len(each) >= shortest for text in TEXTS for each in matches(expression, text)), expression
    assert taken > 300
