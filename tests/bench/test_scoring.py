"""Scoring functions, each with correct answers and near misses."""

from decimal import Decimal

import pytest

from lopa.bench.scoring import VERDICTS, last_number, number_from_text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so it is 8.\n#### 8", 8),
        ("####8.", 8),
        ("#### -1,234.50 dollars", Decimal("-1234.5")),
        ("#### $12", 12),
        ("#### -$5", -5),
        ("#### $-5", -5),
        ("#### **12**", 12),
        ("#### `-.5`", Decimal("-0.5")),
        ("#### .5", Decimal("0.5")),
        ("#### 12 ####", 12),
        ("#### 3 ####\n#### 8", 8),
        ("#### - 5", None),
        ("#### .", None),
        ("the answer is 8", None),
        ("#### eight", None),
        ("####", None),
        ("### 8", None),
        ("#### 8\n####", None),
    ],
)
def test_the_number_after_the_last_marker(text: str, number: Decimal | int | None) -> None:
    assert number_from_text(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("He pays 3 * 4 = $12.50.", Decimal("12.5")),
        ("1,200 in all", 1200),
        ("from 7 to -3", -3),
        ("a loss of -$4.50", Decimal("-4.5")),
        ("half of it is .5", Decimal("0.5")),
        ("#### 8", 8),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number(text: str, number: Decimal | int | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("verdict", "answers", "right", "wrong"),
    [
        ("number", ["#### 5"], ["#### 5.0", "2\n#### 5 eggs"], ["5", "#### 6", ""]),
        ("last_number", ["2 + 3\n#### 1,005"], ["1005", "#### 1005.", "so 1,005.0"], ["1005 of 7", "5", ""]),
        ("text", [" a b", "c"], ["a b", "\nc "], ["a  b", "a", "A B", ""]),
        ("list", ["a, b", "c"], ["a,b", " a , b\n", "c"], ["b, a", "a, b,", "a b", ""]),
        ("list_any_order", ["a, b, b"], ["b, a, b", "a,b,b"], ["a, b", "a, a, b", "a, b, b, ", ""]),
    ],
)
def test_verdicts(verdict: str, answers: list[str], right: list[str], wrong: list[str]) -> None:
    assert [VERDICTS[verdict](text, answers) for text in right] == [True] * len(right)
    assert [VERDICTS[verdict](text, answers) for text in wrong] == [False] * len(wrong)
