"""Expressions of real tokenizers are accepted, others only with bounded search; checked against the library."""

import random
import time

import pytest
import tokenizers
from tests.runtime.text.tokenizer_kinds import EXPRESSIONS

from lopa.runtime.text.backtracking import ExpressionError, shortest_match


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_of_real_tokenizers(expression: str) -> None:
    assert shortest_match(expression) >= 1
    tokenizers.Regex(expression)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("(a+)+b", "repeat inside an unlimited repeat"),
        ("(?:a|aa)+b", "repeat inside an unlimited repeat"),
        ("(?:a?){40}b", "too many"),
        ("a*a*b", "two consecutive unlimited repeats"),
        (r"(a)\1", "unsupported escape"),
        (r"(?<x>a)\g<x>", "unsupported escape"),
        ("(?~a)", "unsupported group"),
        ("a(?i)b|c", "unsupported group"),
        ("[]a]", "begins with ]"),
        ("[[:foo]a:]", "unknown POSIX class"),
        ("(a", "unclosed"),
        ("a)", "unmatched"),
        ("[a", "unclosed"),
        ("*a", "has nothing to repeat"),
        ("a{3,2}", "invalid count"),
        ("(" * 40 + "a" + ")" * 40, "nested parentheses"),
        ("a" * 20_000, "20000 characters"),
        (r"\p", "unsupported escape"),
    ],
)
def test_rejected_expressions(expression: str, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        shortest_match(expression)


@pytest.mark.parametrize(
    ("expression", "shortest"),
    [
        *(("abc", 3), ("a|bc", 1), ("a?", 0), ("a{3,}", 3), ("a{,3}", 0), ("(?:ab){2}c", 5), (r"\s+(?!\S)", 1)),
        *((r"(?<=a)b", 1), ("^$", 0), ("(?>ab|c)d", 2), (r"\x{41}\u0042", 2), ("[[:alpha:]&&[^a-c]]{2}", 2)),
        *(("a{2,3}?", 0), ("a{", 2), ("(?i)ab|c", 1), ("(?<name>ab)", 2), ("", 0)),
    ],
)
def test_shortest_match(expression: str, shortest: int) -> None:
    assert shortest_match(expression) == shortest


PIECES = ["a", "b", "[ab]", "[^c]", ".", r"\w", "(?:a|ab)", "(a)", "(?:ba)", "(?=a)", "(?!b)", "(?>a|ab)", "(?:a?b)"]
COUNTS = ["", "", "", "?", "*", "+", "*?", "+?", "++", "*+", "?+", "{2}", "{1,3}", "{2,}", "{,3}", "{1,2}?"]


def random_expression(rng: random.Random, depth: int = 0) -> str:
    parts = []
    for _ in range(rng.randrange(1, 5)):
        inner = f"(?:{random_expression(rng, depth + 1)})" if depth < 2 and rng.random() < 0.3 else rng.choice(PIECES)
        parts.append(inner + rng.choice(COUNTS))
    if rng.random() < 0.2:
        parts.insert(rng.randrange(len(parts)), "|")
    return "".join(parts) + rng.choice(["", "", "$", "c", "[cd]"])


def test_accepted_expressions_end_soon() -> None:
    """Check that each takes less than a second on a text where bad ones run forever or hit the library's limit."""
    rng = random.Random(0)
    texts = ["a" * 600, "ab" * 300, "ba" * 300 + "d", "a" * 300 + "b" * 300]
    taken = 0
    for _ in range(1500):
        expression = random_expression(rng)
        try:
            shortest_match(expression)
            split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), "isolated")
        except ExpressionError:
            continue
        except Exception as error:
            assert "Oniguruma" in str(error)  # noqa: PT017 (an unsupported look-behind)
            continue
        taken += 1
        for text in texts:
            started = time.process_time()
            split.pre_tokenize_str(text)
            assert time.process_time() - started < 1, expression
    assert taken > 400
