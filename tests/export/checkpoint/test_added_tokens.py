import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.export.checkpoint.slow_tokenizer import BASE, IDS, NOT_SPECIAL, SETTINGS, slow_tokenizer

from lopa.export.checkpoint.added_tokens import added_tokens_from_checkpoint, settings_with_special_tokens
from lopa.runtime.errors import BadInputError

VOCABULARY = {"a": 0, "b": 1}


def _entry(content: Any, **flags: Any) -> dict[str, Any]:
    return {"content": content, **flags}


def _decoder(**entries: Any) -> dict[str, Any]:
    return {"added_tokens_decoder": {key[1:]: entry for key, entry in entries.items()}}


def test_flags_are_kept(tmp_path: Path) -> None:
    flags = {"lstrip": True, "rstrip": False, "single_word": True, "normalized": True, "special": False}
    settings = _decoder(_7=_entry("<x>", **flags), _5=_entry("<y>", rstrip=True, special=True, __type="AddedToken"))
    (first, y), (second, x) = added_tokens_from_checkpoint(tmp_path, settings, VOCABULARY)
    assert (first, y.content, y.rstrip, y.lstrip, y.special, y.normalized) == (5, "<y>", True, False, True, False)
    assert (second, x.content) == (7, "<x>")
    assert {name: getattr(x, name) for name in flags} == flags


@pytest.mark.parametrize(
    "role", [{"eos_token": "<x>"}, {"eos_token": {"content": "<x>"}}, {"extra_special_tokens": ["<x>"]}]
)
def test_a_token_with_a_role_is_special(tmp_path: Path, role: dict[str, Any]) -> None:
    settings = {**_decoder(_7=_entry("<x>", special=False)), **role}
    assert [token.special for _, token in added_tokens_from_checkpoint(tmp_path, settings, VOCABULARY)] == [True]


def test_a_role_of_a_token_of_the_vocabulary(tmp_path: Path) -> None:
    """Check older tokenizers, which have their end-of-text in vocab.json only."""
    ((token_id, token),) = added_tokens_from_checkpoint(tmp_path, {"eos_token": "b", "unk_token": None}, VOCABULARY)
    assert (token_id, token.content, token.special) == (1, "b", True)


def test_old_files_without_a_decoder(tmp_path: Path) -> None:
    """Check ids in added_tokens.json and roles in special_tokens_map.json, against transformers."""
    folder = slow_tokenizer(tmp_path)
    roles = {name: SETTINGS[name] for name in ("bos_token", "eos_token", "pad_token", "mask_token")}
    extra = ["<|im_start|>", "<|im_end|>"]
    settings = {"tokenizer_class": "DreamTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "added_tokens.json").write_text(json.dumps(IDS))
    (folder / "special_tokens_map.json").write_text(json.dumps({**roles, "extra_special_tokens": extra}))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merged = settings_with_special_tokens(folder, settings)
    found = dict(added_tokens_from_checkpoint(folder, merged, vocabulary))
    assert {token.content: i for i, token in found.items()} == IDS
    assert {token.content for token in found.values() if not token.special} == set(NOT_SPECIAL)
    theirs = transformers.Qwen2Tokenizer.from_pretrained(folder).added_tokens_decoder
    assert {i: (t.content, t.special) for i, t in theirs.items()} == {
        i: (t.content, t.special) for i, t in found.items()
    }


def test_both_files_with_the_same_tokens(tmp_path: Path) -> None:
    """Check Dream's case: the decoder's flags win, and a token that only added_tokens.json has is kept."""
    (tmp_path / "added_tokens.json").write_text(json.dumps({**IDS, "<|expand|>": BASE + 20}))
    found = added_tokens_from_checkpoint(tmp_path, SETTINGS, VOCABULARY)
    assert [i for i, _ in found] == [*IDS.values(), BASE + 20]
    assert {t.content for _, t in found if not t.special} == {*NOT_SPECIAL, "<|expand|>"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (_decoder(_x=_entry("<x>")), "added_tokens_decoder['x']"),
        (_decoder(_4294967296=_entry("<x>")), "the added token '<x>' with the id 4294967296"),
        (_decoder(_5="<x>"), "added_tokens_decoder['5'] = '<x>'"),
        (_decoder(_5=_entry("<x>", special="yes")), "added_tokens_decoder['5']"),
        (_decoder(_5=_entry(7)), "the added token 7"),
        (_decoder(_5=_entry("\ud800")), "the added token '\\ud800'"),
        (_decoder(_5=_entry("")), "an added token without text"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder = []"),
        (_decoder(_5=_entry("<x>"), _6=_entry("<x>")), "gives the token '<x>' the ids 5 and 6"),
        (_decoder(_5=_entry("b")), "gives the token 'b' the ids 1 and 5"),
        (_decoder(_1=_entry("<x>")), "gives the id 1 to the tokens 'b' and '<x>'"),
        ({"mask_token": "<x>"}, "names the special token '<x>' without an id"),
    ],
)
def test_rejected_entries(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        added_tokens_from_checkpoint(tmp_path, settings, VOCABULARY)
    assert message in caught.value.received
    assert "copy the tokenizer's files again" in caught.value.remedy


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"<|mask|>": 5}', "gives the token '<|mask|>' the ids"),
        ('{"<x>": "5"}', "'<x>': '5'"),
        ('{"<x>": true}', "'<x>': True"),
        ('{"<x>": -1}', "with the id -1"),
        ('{"": 5}', "an added token without text"),
        ("[]", "got `array`"),
    ],
)
def test_a_broken_added_tokens_file(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "added_tokens.json").write_text(content)
    with pytest.raises(BadInputError) as caught:
        added_tokens_from_checkpoint(tmp_path, SETTINGS, VOCABULARY)
    assert message in caught.value.received


def test_a_broken_special_tokens_map(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text("[]")
    with pytest.raises(BadInputError, match=r"special_tokens_map\.json: Expected `object`"):
        settings_with_special_tokens(tmp_path, {})
    assert settings_with_special_tokens(tmp_path, SETTINGS)["eos_token"] == SETTINGS["eos_token"]  # it is not read
    (tmp_path / "special_tokens_map.json").write_text('{"add_bos_token": true}')
    with pytest.raises(BadInputError, match=r"special_tokens_map\.json: 'add_bos_token': True"):
        settings_with_special_tokens(tmp_path, {})
