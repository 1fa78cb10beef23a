"""A tokenizer of a stranger takes no memory and no time out of proportion; those of real models are taken."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.text import hostile_tokenizers
from tests.runtime.text.tokenizer_kinds import KINDS, LINES, NMT, charsmap, precompiled

from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_text import tokenizer_from_text
from lopa.tiny import CHECKPOINT

TINY = json.loads((CHECKPOINT / "tokenizer.json").read_bytes())


def opened(content: dict[str, Any] | str) -> Tokenizer:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return Tokenizer(
        tokenizer_from_text(text.encode(), Path("tokenizer.json"), expected="a tokenizer", remedy="another one"),
        {},
        None,
        source="a bundle",
    )


def test_no_tokenizer_takes_more_than_its_share() -> None:
    """In a process with 700 MB, which the library would end at the first file that got through."""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.runtime.text.hostile_tokenizers"],
        cwd=root,
        env={"PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    outcomes = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0, (outcomes[-1:], ran.stderr[:2000])
    assert [each for each in outcomes if each[1] != "refused"] == []
    assert len(outcomes) == sum(1 for _ in hostile_tokenizers.files()) > 90


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_of_real_models_are_taken(kind: str) -> None:
    """With the ids and texts that the library itself gives, for short texts and for long ones."""
    content = KINDS[kind]()
    tokenizer, library = opened(content), hostile_tokenizers.library_tokenizer(content)
    for text in (*LINES, " two  spaces", "ﬁn ① Å ``x''", "", "\n\n  a", "ﷺ", " " * 3000, "word " * 3000, "日本" * 3000):
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == library.decode(ids)
    back = tokenizer.decode(tokenizer.encode(LINES[1], add_bos=False))
    assert back.replace(" ", "").lower() == LINES[1].replace(" ", "").lower()


def test_a_table_of_sentencepiece_is_followed() -> None:
    tokenizer = opened({**TINY, "normalizer": precompiled(NMT)})
    assert tokenizer.decode(tokenizer.encode("ﬁn ①\u00a0x", add_bos=False)) == "fin 1 x"


def test_a_field_that_stands_twice_is_read_once() -> None:
    """The library would read both: the first one is hostile."""
    hostile = json.dumps(precompiled(b"\xfc\xff\xff\xff"))
    tokenizer = opened('{"normalizer": ' + hostile + ", " + json.dumps({**TINY, "normalizer": None})[1:])
    assert tokenizer.encode("2 + 3", add_bos=False) == opened(TINY).encode("2 + 3", add_bos=False)


def test_padding_and_truncation_never_reach_the_library() -> None:
    padding = {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    truncation = {"max_length": 1, "stride": 5, "strategy": "LongestFirst", "direction": "Left"}
    tokenizer = opened({**TINY, "padding": padding, "truncation": truncation})
    assert tokenizer.encode("2 + 3", add_bos=False) == opened(TINY).encode("2 + 3", add_bos=False)


@pytest.mark.parametrize(
    ("normalizer", "harmless", "grown"),
    [
        ({"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 100}, "x" * 5000, "e" * 500),
        ({"type": "Replace", "pattern": {"Regex": "e(?=.*Z)"}, "content": "e" * 100}, "x" * 20, "x" * 500),
        ({"type": "Prepend", "prepend": "x" * 900}, "xx", "x" * 500),
        (precompiled(charsmap({"e": "e" * 900})), "x" * 5000, "e" * 500),
    ],
)
def test_what_becomes_of_a_text_is_bounded(normalizer: dict[str, Any], harmless: str, grown: str) -> None:
    tokenizer = opened({**TINY, "normalizer": normalizer})
    assert tokenizer.encode(harmless, add_bos=False)
    with pytest.raises(BadInputError, match="of which the bundle's tokenizer may make") as caught:
        tokenizer.encode(grown, add_bos=False)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("field", "part", "received"),
    [
        ("normalizer", {"type": "Shell"}, "normalizer: type 'Shell'"),
        ("pre_tokenizer", {"type": "Lowercase"}, "pre_tokenizer: type 'Lowercase'"),
        ("decoder", {"type": "Sequence", "decoders": [{"type": "X"}]}, r"decoder.decoders\[0\]: type 'X'"),
        ("post_processor", {"type": "Fuse"}, "post_processor: type 'Fuse'"),
        ("normalizer", {"type": "Replace", "content": "x"}, "normalizer: "),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}, "a repeat inside a repeat"),
    ],
)  # fmt: skip
def test_an_error_says_what_is_wrong_and_what_is_taken(field: str, part: dict[str, Any], received: str) -> None:
    with pytest.raises(BadInputError, match=received) as caught:
        opened({**TINY, field: part})
    assert caught.value.received.startswith("tokenizer.json: ")
    assert caught.value.expected
    assert caught.value.remedy == "another one"
