"""Texts with holes: reading marks and parts, and refusing what has no meaning."""

from typing import Any

import numpy as np
import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.text_with_holes import MAX_HOLE_TOKENS, MAX_HOLES, Hole, text_with_holes


def test_marks_are_holes() -> None:
    text = text_with_holes("def f(x):\n    <hole:32>\n    return <hole:1>")
    assert text.parts == ("def f(x):\n    ", Hole(32), "\n    return ", Hole(1))
    assert text.holes == (Hole(32), Hole(1))
    assert text_with_holes("<hole:2>").parts == (Hole(2),)
    assert text_with_holes("a <hole:x> <hole> <hole:3>").parts == ("a <hole:x> <hole> ", Hole(3))


def test_parts_are_taken_as_they_are() -> None:
    assert text_with_holes(["<hole:3>", Hole(2), [5, 6], np.array([7])]).parts == ("<hole:3>", Hole(2), (5, 6), (7,))
    assert text_with_holes(["", Hole(2), ""]).parts == (Hole(2),)


def test_lengths_of_a_range_are_spaced_evenly() -> None:
    lengths = [each.holes for each in text_with_holes(["a", Hole(1, 15), "b", Hole(3), "c", Hole(2, 4)]).with_lengths()]
    assert [one.tokens for one, _, _ in lengths] == [1, 3, 5, 7, 9, 11, 13, 15]
    assert [one.tokens for _, one, _ in lengths] == [3] * 8
    assert [one.tokens for _, _, one in lengths] == [2, 2, 3, 3, 3, 3, 4, 4]
    assert text_with_holes("<hole:2-4>").with_lengths() == tuple(
        map(text_with_holes, ("<hole:2>", "<hole:3>", "<hole:4>"))
    )
    assert text_with_holes("<hole:2>").with_lengths() == (text_with_holes("<hole:2>"),)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("no hole", "a text without a hole"),
        ("<hole:2><hole:3>", "two holes without text between them"),
        ("<hole:4-3>", "maximum tokens of a hole 3"),
        (f"<hole:{MAX_HOLE_TOKENS + 1}>", f"tokens of a hole {MAX_HOLE_TOKENS + 1}"),
        ("a<hole:1>" * (MAX_HOLES + 1), f"a text with {MAX_HOLES + 1} holes"),
        ([b"a", Hole(1)], "invalid part b'a'"),
        (["a", {"hole": 3}], "invalid part"),
    ],
    ids=str,
)
def test_texts_without_meaning_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        text_with_holes(parts)
    assert message in caught.value.received
    assert caught.value.remedy
