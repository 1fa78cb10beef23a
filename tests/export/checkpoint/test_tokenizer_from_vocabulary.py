"""The tokenizer against transformers' Qwen2Tokenizer, and files that are missing or broken."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tests.export.checkpoint.slow_tokenizer import ADDED, BASE, IDS, NOT_SPECIAL, SETTINGS, TEXTS, slow_tokenizer
from tokenizers import Tokenizer

from lopa.export.checkpoint.tokenizer_from_vocabulary import tokenizer_from_vocabulary
from lopa.runtime.errors import BadInputError

_ALPHABET = (
    "aeinst ETX'0123456789.,:;()[]{}=+-_\"\\\n\r\t\u00a0\u3000éüßÅe\u0301"
    "中国的字こんカ한글Приעم🙂🎉👩\u200d🇩\u1100\u1161"
)
PIECES = st.one_of(
    st.sampled_from(
        [*TEXTS, *ADDED, "'SALAD", "  \n", "\r\n\r\n", "<|mask|", "ﬁ", "Å", "\u212b", "1234567", "Ġ", "a\u0000b"]
    ),
    st.text(alphabet=_ALPHABET, max_size=12),
    st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=8),
)
ANY_TEXT = st.lists(PIECES, max_size=6).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slow_tokenizer(tmp_path_factory.mktemp("slow"))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    """Return the tokenizer of a bundle, that is, after writing and reading."""
    return Tokenizer.from_str(tokenizer_from_vocabulary(folder, SETTINGS).to_str())


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers.Qwen2Tokenizer.from_pretrained(folder)


@given(text=ANY_TEXT)
def test_ids_and_text_match_transformers(ours: Tokenizer, theirs: Any, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, add_special_tokens=False)
    # Compare the pieces too: few merges of the small vocabulary cross their borders.
    cut = theirs.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert ours.pre_tokenizer.pre_tokenize_str(text) == cut
    for skip in (False, True):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_merges_are_used(ours: Tokenizer) -> None:
    assert all(len(ours.encode(text).ids) < 0.8 * len(text.encode()) for text in TEXTS)


def test_added_tokens_keep_ids_and_flags(ours: Tokenizer) -> None:
    found = ours.get_added_tokens_decoder()
    assert {token.content: i for i, token in found.items()} == IDS
    assert {token.content for token in found.values() if not token.special} == set(NOT_SPECIAL)
    assert ours.encode("a<|mask|>b").ids[1] == IDS["<|mask|>"] > BASE
    assert ours.decode(list(IDS.values())) == "<tool_call></tool_call>"


def test_ids_with_gaps_are_kept(tmp_path: Path) -> None:
    """Check ids with gaps: the tokenizers library would number added tokens from the length of the vocabulary."""
    gaps = {content: BASE + 10 + 3 * i for i, content in enumerate(reversed(ADDED))}
    decoder = {str(gaps[content]): SETTINGS["added_tokens_decoder"][str(IDS[content])] for content in ADDED}
    folder = slow_tokenizer(tmp_path)
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    moved = {token: i if i != 7 else BASE + 1 for token, i in vocabulary.items()}
    (folder / "vocab.json").write_text(json.dumps(moved))
    made = tokenizer_from_vocabulary(folder, {**SETTINGS, "added_tokens_decoder": decoder})
    for tokenizer in (made, Tokenizer.from_str(made.to_str())):
        assert {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()} == gaps
        assert tokenizer.encode("".join(ADDED)).ids == [gaps[content] for content in ADDED]
        assert tokenizer.get_vocab(with_added_tokens=True) == {**moved, **gaps}


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "Qwen2TokenizerFast"])
def test_other_names_of_the_same_tokenizer(folder: Path, ours: Tokenizer, kind: str) -> None:
    made = tokenizer_from_vocabulary(folder, {**SETTINGS, "tokenizer_class": kind})
    assert made.to_str() == ours.to_str()


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "LLaDATokenizer", None, ["DreamTokenizer"]])
def test_an_unknown_class(folder: Path, kind: Any) -> None:
    with pytest.raises(BadInputError, match="tokenizer_class = ") as caught:
        tokenizer_from_vocabulary(folder, {**SETTINGS, "tokenizer_class": kind})
    assert "DreamTokenizer" in caught.value.expected
    assert "make a tokenizer.json" in caught.value.remedy


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_one_of_the_two_files_is_missing(tmp_path: Path, name: str) -> None:
    folder = slow_tokenizer(tmp_path)
    (folder / name).unlink()
    with pytest.raises(BadInputError, match=f"{name} does not exist") as caught:
        tokenizer_from_vocabulary(folder, SETTINGS)
    assert "copy vocab.json and merges.txt again" in caught.value.remedy


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#version: 0.2\nt h e\n", "line 2: 't h e'"),
        (b"#version: 0.2\n\xc4\xa0", "line 2: 'Ġ'"),
        (b"e unknown\n", "line 1: 'e unknown'"),
        (b"< >\n", "line 1: '< >'"),
        (b"e \xff\n", "is not UTF-8"),
        (b"", f"has no merge for {BASE - 256} tokens"),
    ],
)
def test_broken_merges(tmp_path: Path, content: bytes, message: str) -> None:
    folder = slow_tokenizer(tmp_path)
    (folder / "merges.txt").write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        tokenizer_from_vocabulary(folder, SETTINGS)
    assert message in caught.value.received
    assert "merges.txt" in caught.value.received
    assert "again" in caught.value.remedy


def test_line_ends_of_windows_change_nothing(tmp_path: Path, ours: Tokenizer) -> None:
    folder = slow_tokenizer(tmp_path)
    path = folder / "merges.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert tokenizer_from_vocabulary(folder, SETTINGS).to_str() == ours.to_str()


def test_merges_that_are_a_folder(tmp_path: Path) -> None:
    folder = slow_tokenizer(tmp_path)
    (folder / "merges.txt").unlink()
    (folder / "merges.txt").mkdir()
    with pytest.raises(BadInputError, match="not a regular file"):
        tokenizer_from_vocabulary(folder, SETTINGS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"e": "5"}, "gives the token 'e' the id '5'"),
        ({"e": -1}, "gives the token 'e' the id -1"),
        ({"e": True}, "gives the token 'e' the id True"),
        ({"e": 2**32}, "gives the token 'e' the id 4294967296"),
        ({"e": 7}, "gives the id 7 to the tokens"),
        ({"Ġ": None}, "lacks 1 of the 256 bytes, such as 'Ġ'"),
        ({"中": 500}, "has no merge for 1 tokens of vocab.json, such as '中'"),
        ({"\ud800": 500}, "utf-16 surrogate"),
    ],
)
def test_a_broken_vocabulary(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = slow_tokenizer(tmp_path)
    path = folder / "vocab.json"
    changed = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    path.write_text(json.dumps({token: i for token, i in changed.items() if i is not None}))
    with pytest.raises(BadInputError) as caught:
        tokenizer_from_vocabulary(folder, SETTINGS)
    assert message in caught.value.received
