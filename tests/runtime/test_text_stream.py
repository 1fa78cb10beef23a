"""Streams held against whole decodes, over any text, any ids and any division into pieces."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.text_stream import TextStream
from lopa.runtime.tokenizer import Tokenizer

TRICKY = st.text(
    st.one_of(st.sampled_from("ab \n€é日本語😀👩‍👩‍👧e\u0301\u200d\ufffd"), st.characters(exclude_categories=["Cs"])),
    max_size=30,
)
"""Emoji, joined emoji, combining marks, CJK, true U+FFFD, and anything else."""
FEW = st.text("ab€", max_size=14)
"""Few letters, so that stop strings occur and overlap."""
STOPS = st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=3)
IDS = st.lists(st.integers(0, 1023), max_size=40)
CUTS = st.lists(st.integers(1, 6), max_size=40)


@pytest.fixture(scope="module")
def tokenizer(tiny_bundle: Path) -> Tokenizer:
    return Tokenizer.open(Bundle.open(tiny_bundle))


def pieces_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """`ids` in pieces of the lengths `cuts`, then one by one."""
    pieces = []
    for cut in [*cuts, *[1] * len(ids)]:
        pieces.append(ids[:cut])
        ids = ids[cut:]
    return [piece for piece in pieces if piece]


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """What the stream promises, the slow way: the first end of a stop string, the longest that ends there."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, None


@given(text=TRICKY, cuts=CUTS)
def test_any_text_in_any_pieces(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    stream = TextStream(tokenizer)
    given_out = ""
    ids = tokenizer.encode(text, add_bos=True)
    for piece in pieces_of(ids, cuts):
        given_out += stream.push(piece)
        assert text.startswith(given_out)
    assert given_out + stream.finish() == text
    assert stream.finish() == ""
    assert stream.stopped is None
    assert stream.token_count == len(ids)


@given(ids=IDS, cuts=CUTS)
@example(ids=[161, 161, 227, 67, 161, 227, 108, 161], cuts=[])
def test_any_ids_in_any_pieces(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    """Most random ids are broken UTF-8."""
    whole = tokenizer.decode(ids)
    stream = TextStream(tokenizer)
    given_out = ""
    for piece in pieces_of(ids, cuts):
        given_out += stream.push(piece)
        assert whole.startswith(given_out)
    assert given_out + stream.finish() == whole


@given(text=TRICKY)
def test_nothing_certain_is_kept_back(tokenizer: Tokenizer, text: str) -> None:
    """After every token: all but characters still incomplete, which a decode shows as U+FFFD at the end."""
    stream = TextStream(tokenizer)
    ids = tokenizer.encode(text, add_bos=False)
    given_out = ""
    for count, new in enumerate(ids, start=1):
        given_out += stream.push([new])
        assert given_out == tokenizer.decode(ids[:count]).rstrip("\ufffd")


@given(text=FEW, stops=STOPS, cuts=CUTS)
@example(text="abab€", stops=["abab€", "ba"], cuts=[])
@example(text="aab", stops=["ab", "b"], cuts=[])
def test_the_first_stop_string_ends_the_text(
    tokenizer: Tokenizer, text: str, stops: list[str], cuts: list[int]
) -> None:
    expected, stop = first_stop(text, stops)
    ids = tokenizer.encode(text, add_bos=False)
    stream = TextStream(tokenizer, tuple(stops))
    given_out = ""
    for piece in pieces_of(ids, cuts):
        given_out += stream.push(piece)
        assert expected.startswith(given_out)
    assert given_out + stream.finish() == expected
    assert stream.stopped == stop
    ends = [n for n in range(len(ids) + 1) if stop is not None and (expected + stop) in tokenizer.decode(ids[:n])]
    assert stream.token_count == (ends[0] if ends else len(ids))


@given(text=FEW, stop=st.text("ab€", min_size=1, max_size=4))
def test_with_one_stop_string_the_text_is_what_stands_before_it(tokenizer: Tokenizer, text: str, stop: str) -> None:
    stream = TextStream(tokenizer, [stop])
    assert stream.push(tokenizer.encode(text, add_bos=False)) + stream.finish() == text.split(stop)[0]


@given(text=FEW, stops=STOPS)
def test_only_the_beginning_of_a_stop_string_is_held(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    stream = TextStream(tokenizer, stops)
    ids = tokenizer.encode(text, add_bos=False)
    given_out = ""
    for count, new in enumerate(ids, start=1):
        given_out += stream.push([new])
        if stream.stopped is not None:
            return
        held = tokenizer.decode(ids[:count]).rstrip("\ufffd").removeprefix(given_out)
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_nothing_comes_after_a_stop_string(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["\n"])
    head, tail = (tokenizer.encode(text, add_bos=False) for text in ("one\n", "two\n"))
    assert stream.push([*head, *tail]) == "one"
    assert stream.push(tail) == ""
    assert stream.finish() == ""
    assert stream.stopped == "\n"
    assert stream.token_count == len(head)


def test_a_stop_string_may_end_in_what_only_the_end_makes_certain(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["x\ufffd"])
    assert stream.push(tokenizer.encode("ax\ufffd", add_bos=False)) == "a"
    assert stream.stopped is None
    assert stream.finish() == ""
    assert stream.stopped == "x\ufffd"


def test_special_tokens_count_but_have_no_text(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["ab"])
    a, b = tokenizer.encode("a", add_bos=False), tokenizer.encode("b", add_bos=False)
    assert stream.push([0, *a, 2, 0, *b, 0, 0]) == ""
    assert stream.stopped == "ab"
    assert stream.token_count == 5


def test_a_character_may_be_spread_around_a_special_token(tokenizer: Tokenizer) -> None:
    first, *rest = tokenizer.encode("€", add_bos=False)
    stream = TextStream(tokenizer)
    assert stream.push([first, 2]) == ""
    assert stream.push(rest) == "€"


def test_an_empty_stop_string(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadInputError, match="empty stop string"):
        TextStream(tokenizer, ["a", ""])
