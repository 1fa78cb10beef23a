"""Streams compared with complete decodes, over any text, IDs and pieces."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from lopa.runtime.bundle import Bundle
from lopa.runtime.text.text_stream import TextStream, partial_mark_length
from lopa.runtime.text.tokenizer import Tokenizer

TRICKY = st.text(
    st.one_of(st.sampled_from("ab \n€é日本語😀👩‍👩‍👧e\u0301\u200d\ufffd"), st.characters(exclude_categories=["Cs"])),
    max_size=30,
)
"""Texts with emoji, joined emoji, combining marks, CJK, real U+FFFD and anything else."""
FEW = st.text("ab€", max_size=14)
"""Texts of few letters, so that stop strings occur and overlap."""
STOPS = st.lists(st.text("ab€", min_size=1, max_size=4), min_size=1, max_size=3)
CUTS = st.lists(st.integers(1, 6), max_size=40)


@pytest.fixture(scope="module")
def tokenizer(tiny_bundle: Path) -> Tokenizer:
    return Tokenizer.open(Bundle.open(tiny_bundle))


@pytest.fixture(scope="module")
def mixed() -> Tokenizer:
    """Return a tokenizer of bytes and of tokens that split characters, as in large vocabularies."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    join_marked = ["\u0120\u00e2", "a\u00f0", "\u00acb", "\u00e2\u0124", "\u00b8\u0122"]  # in byte-level letters
    words = [*letters, *join_marked]
    backend = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {}, None, source="mixed")


def pieces_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    """Yield `ids` in pieces of the lengths `cuts`, then one by one."""
    pieces = []
    for cut in [*cuts, *[1] * len(ids)]:
        pieces.append(ids[:cut])
        ids = ids[cut:]
    return [piece for piece in pieces if piece]


def first_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text before its first stop string, and that string. Of several with one end, the longest counts."""
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


@given(ids=st.lists(st.one_of(st.integers(0, 260), st.integers(256, 260)), max_size=30), cuts=CUTS)
@example(ids=[257, 256, 258], cuts=[])
def test_tokens_that_split_characters(mixed: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    mark_whole = mixed.decode(ids)
    stream = TextStream(mixed)
    given_out = ""
    seen = 0
    for piece in pieces_of(ids, cuts):
        given_out += stream.push(piece)
        seen += len(piece)
        assert given_out == mixed.decode(ids[:seen]).rstrip("\ufffd")
    assert given_out + stream.finish() == mark_whole


def test_pieces_of_a_tokenizer_whose_text_depends_on_tokens_next_to_each_other() -> None:
    """The bytes of Llama's tokenizer become text together, so a broken character also spoils the letter before it."""
    backend = tokenizers.Tokenizer(models.WordLevel({"<0x41>": 0, "<0xFF>": 1, "b": 2}, unk_token="b"))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = Tokenizer(backend, {}, None, source="bytes")
    one_by_one = TextStream(tokenizer)
    text = "".join(one_by_one.push([each]) for each in (0, 1, 2))
    assert text == "A\ufffdb" != tokenizer.decode([0, 1, 2])
    assert TextStream(tokenizer).push([0, 1, 2]) == text


@given(text=FEW, stops=STOPS, cuts=CUTS)
@example(text="abab€", stops=["abab€", "ba"], cuts=[])
@example(text="aab", stops=["ab", "b"], cuts=[])
def test_first_stop_string_ends_the_text(tokenizer: Tokenizer, text: str, stops: list[str], cuts: list[int]) -> None:
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


def test_stop_string_completed_by_the_end(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["x\ufffd"])
    assert stream.push(tokenizer.encode("ax\ufffd", add_bos=False)) == "a"
    assert stream.stopped is None
    assert stream.finish() == ""
    assert stream.stopped == "x\ufffd"


@pytest.mark.parametrize(
    ("text", "marks", "length"),
    [
        ("abc", [], 0),
        ("abc", ["", "d"], 0),
        ("abc", ["cd", "bcd", "xbc"], 2),
        ("aaa", ["aaaa"], 3),
        ("aaa", ["aa"], 1),
        ("c", ["cd"], 1),
        ("", ["cd"], 0),
    ],
)
def test_the_longest_end_that_begins_a_mark(text: str, marks: list[str], length: int) -> None:
    assert partial_mark_length(text, marks) == length
