import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer

EOS, BOS, MASK = 0, 1, 2
MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.fixture(scope="module")
def tokenizer(tiny_bundle: Path) -> Tokenizer:
    return Tokenizer.open(Bundle.open(tiny_bundle))


def changed_bundle(source: Path, target: Path, name: str, content: bytes) -> Bundle:
    """Return a copy of a bundle with other content in the file `name`."""
    shutil.copytree(source, target)
    (target / name).write_bytes(content)
    path = target / "manifest.json"
    manifest = json.loads(path.read_bytes())
    for record in manifest["files"]:
        if record["path"] == name:
            record["size"] = len(content)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return Bundle.open(target)


def with_settings(source: Path, target: Path, **settings: Any) -> Tokenizer:
    old = json.loads((source / "tokenizer_config.json").read_bytes())
    content = json.dumps(old | settings).encode()
    return Tokenizer.open(changed_bundle(source, target, "tokenizer_config.json", content))


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_bos=True)
    assert ids[0] == BOS
    assert tokenizer.decode(ids) == text


def test_beginning_of_text_is_added_once(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("Hello", add_bos=False)
    assert tokenizer.encode("Hello", add_bos=True) == [BOS, *plain]
    assert tokenizer.encode("<|beginoftext|>Hello", add_bos=True, special_tokens=True) == [BOS, *plain]
    assert tokenizer.encode("", add_bos=True) == [BOS]


def test_invalid_unicode(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadInputError, match="not valid Unicode"):
        tokenizer.encode("caf\udce9", add_bos=True)


def test_chat_has_one_beginning_of_text(tiny_bundle: Path, tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ sep_token }}>"
    found = with_settings(
        tiny_bundle, tmp_path / "copy", chat_template=template, sep_token={"content": "##", "special": True}
    )
    assert found.chat_text(MESSAGES) == "<|beginoftext|>What is 2 + 3?<|endoftext|>##>"
    middle = found.encode("What is 2 + 3?", add_bos=False)
    assert found.chat(MESSAGES) == [BOS, *middle, EOS, *found.encode("##>", add_bos=False)]


def test_default_of_named_templates(tiny_bundle: Path, tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert with_settings(tiny_bundle, tmp_path / "copy", chat_template=named).chat_text(MESSAGES) == "plain"


@pytest.mark.parametrize("settings", [{}, {"chat_template": None}, {"chat_template": [{"name": "x", "template": "y"}]}])
def test_no_template(tiny_bundle: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    found = with_settings(tiny_bundle, tmp_path / "copy", **settings)
    with pytest.raises(BadInputError, match="no chat template") as caught:
        found.chat(MESSAGES)
    assert caught.value.exit_code == 2
    assert ("BUNDLE --chat-template" in str(caught.value), "operator" in str(caught.value)) == (True, False)
    assert caught.value.client_text.endswith("use a plain prompt")


@pytest.mark.parametrize(
    ("name", "token"),
    [("mask", 700), ("bos", 700), ("bos", None), ("eos", 1023), ("eos", 700), ("eos", 1), ("pad", 700)],
)
def test_special_tokens_missing_in_the_tokenizer(
    tiny_bundle: Path, tmp_path: Path, name: str, token: int | None
) -> None:
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle")) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["special_tokens"][name] = token
    path.write_text(json.dumps(manifest))
    with pytest.raises(BadInputError, match=name):
        Tokenizer.open(Bundle.open(path.parent))


@pytest.mark.parametrize("number", [-1, 2**24 + 1, 2**64, "1"])
@pytest.mark.parametrize("place", ["vocab", "added"])
def test_huge_ids_are_rejected(tiny_bundle: Path, tmp_path: Path, place: str, number: object) -> None:
    """Check huge IDs: the library's memory grows with the largest one, and it aborts without memory."""
    content = json.loads((tiny_bundle / "tokenizer.json").read_bytes())
    if place == "vocab":
        content["model"]["vocab"]["ying"] = number
    else:
        content["added_tokens"][0]["id"] = number
    bundle = changed_bundle(tiny_bundle, tmp_path / "bundle", "tokenizer.json", json.dumps(content).encode())
    with pytest.raises(BadInputError, match="is not a tokenizer"):
        Tokenizer.open(bundle)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer_config.json", b"[1]"),
        ("tokenizer_config.json", b"not json"),
    ],
)
def test_broken_files(tiny_bundle: Path, tmp_path: Path, name: str, content: bytes) -> None:
    bundle = changed_bundle(tiny_bundle, tmp_path / "copy", name, content)
    with pytest.raises(BadInputError, match=name):
        Tokenizer.open(bundle)
