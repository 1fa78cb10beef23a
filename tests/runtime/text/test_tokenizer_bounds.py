"""Untrusted tokenizers cannot use disproportionate memory or time. Tokenizers of real models are accepted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.runtime.bundle.test_opened_once import sign
from tests.runtime.text import hostile_tokenizers
from tests.runtime.text.test_tokenizer import changed_bundle
from tests.runtime.text.tokenizer_kinds import KINDS, LINES, charsmap, precompiled
from tokenizers.normalizers import Replace

from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_parts import TRUST, check_normalizer
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


def test_hostile_tokenizers_are_rejected() -> None:
    """Run hostile files in a process with 700 MB, which the library would abort if one got through."""
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
def test_real_tokenizers_are_accepted(kind: str) -> None:
    """Check that IDs and texts equal the library's own, for short and long texts."""
    content = KINDS[kind]()
    tokenizer, library = opened(content), hostile_tokenizers.library_tokenizer(content)
    for text in (*LINES, " two  spaces", "ﬁn ① Å ``x''", "", "\n\n  a", "ﷺ", " " * 3000, "word " * 3000, "日本" * 3000):
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == library.decode(ids)
    back = tokenizer.decode(tokenizer.encode(LINES[1], add_bos=False))
    assert back.replace(" ", "").lower() == LINES[1].replace(" ", "").lower()


def test_a_tokenizer_that_draws_its_tokens_is_rejected() -> None:
    with pytest.raises(BadInputError, match=r"a model with dropout 0\.5"):
        opened({**TINY, "model": {**TINY["model"], "dropout": 0.5}})
    assert opened({**TINY, "model": {**TINY["model"], "dropout": 0.0}})


def test_duplicate_fields_are_read_once() -> None:
    """Check duplicate fields: the library would read both, and the first is hostile."""
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
        ({"type": "Replace", "pattern": {"Regex": "e"}, "content": "e" * 100}, "x" * 20, "x" * 500),
        ({"type": "Prepend", "prepend": "x" * 900}, "xx", "x" * 500),
        (precompiled(charsmap({"e": "e" * 900})), "x" * 5000, "e" * 500),
    ],
)
def test_text_growth_is_bounded(normalizer: dict[str, Any], harmless: str, grown: str) -> None:
    tokenizer = opened({**TINY, "normalizer": normalizer})
    assert tokenizer.encode(harmless, add_bos=False)
    with pytest.raises(BadInputError, match=r"the bundle's tokenizer may turn [0-9]+ bytes of text into") as caught:
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
    ],
)  # fmt: skip
def test_errors_name_the_problem_and_the_accepted_values(field: str, part: dict[str, Any], received: str) -> None:
    with pytest.raises(BadInputError, match=received) as caught:
        opened({**TINY, field: part})
    assert caught.value.received.startswith("tokenizer.json: ")
    assert caught.value.expected
    assert caught.value.remedy == "another one"


OWN = "(a+)+c"
"""Expression that takes unlimited time on some texts."""
PARTS: dict[str, dict[str, Any]] = {
    "normalizer": {"type": "Replace", "pattern": {"Regex": OWN}, "content": "x"},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": OWN}, "behavior": "Isolated", "invert": False},
    "decoder": {"type": "Replace", "pattern": {"Regex": OWN}, "content": "x"},
}


@pytest.mark.parametrize("field", PARTS)
def test_unknown_expressions_need_trust(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {**TINY, field: PARTS[field]}
    monkeypatch.setenv(TRUST, "0")
    with pytest.raises(
        BadInputError, match=rf"{field}: {PARTS[field]['type']} has the regular .* '\(a\+\)\+c'"
    ) as caught:
        opened(content)
    assert caught.value.expected.startswith("the expression of a published tokenizer")
    assert caught.value.remedy.startswith(f"if you trust the author of this tokenizer, set {TRUST}=1")
    monkeypatch.setenv(TRUST, "1")
    tokenizer, library = opened(content), hostile_tokenizers.library_tokenizer(content)
    for text in ("aac", "2 + 3 = 5", "bac"):
        ids = tokenizer.encode(text, add_bos=False)
        assert ids == library.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids) == library.decode(ids)


def test_growth_of_replacements() -> None:
    """Check that an unknown expression may match nothing, before each character and at the end of the text."""
    assert check_normalizer({**PARTS["normalizer"], "content": "abc"}, trusted=True) == 7
    empty = {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "XYZ"}
    assert check_normalizer(empty, trusted=False) == len(Replace(tokenizers.Regex("a*"), "XYZ").normalize_str("b"))
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}
    assert check_normalizer(spaces, trusted=False) == 2


def test_a_signed_bundle_may_have_any_expression(tiny_bundle: Path, tmp_path: Path) -> None:
    """Check that the helper of grammars opens the bundle too."""
    content = json.dumps({**TINY, "pre_tokenizer": PARTS["pre_tokenizer"]}).encode()
    folder = changed_bundle(tiny_bundle, tmp_path / "bundle", "tokenizer.json", content).path
    options: dict[str, Any] = {"threads": 1, "grammar_limits": GrammarLimits(), "chat_template": "{{ messages }}"}
    with pytest.raises(BadInputError, match="has the regular expression"):
        Decoder.open(folder, **options)
    with Decoder.open(folder, **options, trusted_keys=[sign(folder, tmp_path)]) as decoder:
        assert decoder.generate("2 + 3", regex="[0-9]{2}", max_new_tokens=8).text.isdigit()
    with pytest.raises(BadInputError, match="has the regular expression"):
        Decoder.open(folder, **options)
