import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.dreamon_checkpoint import EXPAND_ID, EXPAND_TEXT, checkpoint_with_expand
from tests.export.checkpoint.slow_tokenizer import CONFIG_IDS, IDS, NOT_SPECIAL, TEXTS, slow_tokenizer
from tests.export.checkpoints import ONE_LAYER, TOKENIZER_CONFIG, edit_config, small_checkpoint
from tests.tools.miniature import MINIATURES
from tools.checkpoint.make import checkpoint_from_likeness

from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.export.checkpoint.tokenizer_files import TokenizerFiles, tokenizer_files_from_checkpoint
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import SpecialTokens
from lopa.runtime.errors import BadInputError
from lopa.runtime.text.tokenizer import Tokenizer
from lopa.runtime.text.tokenizer_parts import TRUST
from lopa.tiny import CHECKPOINT


def _files(checkpoint: Path) -> TokenizerFiles:
    return tokenizer_files_from_checkpoint(checkpoint, config_from_checkpoint(checkpoint))


def _write_settings(checkpoint: Path, settings: dict[str, Any]) -> None:
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(settings))


def test_the_files_are_the_checkpoint_s(tmp_path: Path) -> None:
    files = _files(CHECKPOINT)
    assert files.tokenizer == (CHECKPOINT / "tokenizer.json").read_bytes()
    assert json.loads(files.tokenizer_config) == json.loads((CHECKPOINT / "tokenizer_config.json").read_text())
    assert (files.adds_bos, files.notes) == (False, ())


def test_tokens_with_a_role_become_special_tokens(tmp_path: Path) -> None:
    files = _files(small_checkpoint(tmp_path))
    added = json.loads(files.tokenizer)["added_tokens"]
    assert [(each["id"], each["special"]) for each in added] == [(0, True), (1, True), (2, True)]
    assert json.loads(files.tokenizer_config) == TOKENIZER_CONFIG
    assert files.special_tokens == SpecialTokens(mask=2, eos=0, pad=0, bos=1)


def test_ids_come_from_the_tokenizer_where_the_config_has_none(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path)
    edit_config(checkpoint, mask_token_id=None, eos_token_id=None, pad_token_id=None, bos_token_id=None)
    _write_settings(
        checkpoint, {"mask_token": "w9", "eos_token": {"content": "w7", "lstrip": False}, "bos_token": "w5"}
    )
    assert _files(checkpoint).special_tokens == SpecialTokens(mask=9, eos=7, pad=7, bos=5)


def test_the_tokenizer_s_bos_overrides_the_config_s(tmp_path: Path) -> None:
    """Check Dream: bos_token_id in config.json is its end-of-text, but prompts start with the tokenizer's bos."""
    checkpoint = small_checkpoint(tmp_path)
    edit_config(checkpoint, bos_token_id=0)
    assert _files(checkpoint).special_tokens.bos == 1
    _write_settings(checkpoint, {**TOKENIZER_CONFIG, "bos_token": None})
    assert _files(checkpoint).special_tokens.bos == 0
    edit_config(checkpoint, bos_token_id=None)
    assert _files(checkpoint).special_tokens.bos is None


@pytest.mark.parametrize(
    ("family", "mask_id"),
    [(family, 5 if family == "stable-diffcoder" else 639) for family in MINIATURES],
)
def test_the_mask_token_of_every_family(tmp_path: Path, family: str, mask_id: int) -> None:
    """Check that config.json or the text of an added token names it; without both it is missing or assumed."""
    likeness = MINIATURES[family]
    checkpoint_from_likeness(likeness, tmp_path / "checkpoint")
    files = _files(tmp_path / "checkpoint")
    assert (files.special_tokens.mask, files.assumed_mask) == (mask_id, False)
    tokenizer = json.loads((tmp_path / "checkpoint" / "tokenizer.json").read_text())
    text = json.dumps(tokenizer).replace(json.dumps(likeness.mask_text), '"<|other|>"')
    (tmp_path / "checkpoint" / "tokenizer.json").write_text(text)
    _write_settings(tmp_path / "checkpoint", {"bos_token": None, "eos_token": "<|endoftext|>"})
    edit_config(tmp_path / "checkpoint", mask_token_id=None)
    if family == "stable-diffcoder":
        found = _files(tmp_path / "checkpoint")
        assert (found.special_tokens.mask, found.assumed_mask) == (5, True)
        return
    with pytest.raises(BadInputError) as caught:
        _files(tmp_path / "checkpoint")
    assumed = {"wedlm": 151665, "llada2-moe": 156895, "llada-moe": 156895}
    expected = f"special_tokens.mask = {assumed[family]}" if family in assumed else "names no mask token"
    assert expected in caught.value.received
    if family == "fast-dllm-v2":
        assert "or the token |<MASK>|" in caught.value.expected


def test_a_tokenizer_with_an_own_expression_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_checkpoint(tmp_path) / "tokenizer.json"
    split = {"type": "Split", "pattern": {"Regex": "(a+)+c"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**json.loads(path.read_text()), "pre_tokenizer": split}))
    with pytest.raises(
        BadInputError, match=r"tokenizer\.json: pre_tokenizer: Split has the regular expression"
    ) as caught:
        _files(path.parent)
    assert f"set {TRUST}=1" in caught.value.remedy
    monkeypatch.setenv(TRUST, "1")
    assert json.loads(_files(path.parent).tokenizer)["pre_tokenizer"] == split


def test_the_expand_token_of_dreamon(tmp_path: Path) -> None:
    """Check that config.json, tokenizer_config.json or the text of an added token names it."""
    checkpoint = checkpoint_with_expand(tmp_path / "checkpoint")
    assert _files(checkpoint).special_tokens.expand == EXPAND_ID
    text = (checkpoint / "tokenizer.json").read_text(encoding="utf-8")
    (checkpoint / "tokenizer.json").write_text(text.replace(EXPAND_TEXT, "<|other|>"), encoding="utf-8")
    assert _files(checkpoint).special_tokens.expand is None
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    _write_settings(checkpoint, {**settings, "expand_token": "<|other|>"})
    assert _files(checkpoint).special_tokens.expand == EXPAND_ID
    _write_settings(checkpoint, settings)
    edit_config(checkpoint, expand_token_id=EXPAND_ID)
    assert _files(checkpoint).special_tokens.expand == EXPAND_ID
    edit_config(checkpoint, expand_token_id=2)
    assert "special_tokens.expand = 2, which has another role" in _refused(checkpoint)


def test_an_expand_token_sets_dreamon_s_strategy(expand_bundle: Path, tiny_bundle: Path) -> None:
    found, usual = (Bundle.open(path).manifest for path in (expand_bundle, tiny_bundle))
    assert (found.special_tokens.expand, found.decoding.strategy) == (EXPAND_ID, "vanilla")
    assert (usual.special_tokens.expand, usual.decoding.strategy) == (None, "lopa")
    assert "expand" not in (tiny_bundle / "manifest.json").read_text(encoding="utf-8")


def test_an_assumed_mask_token_is_reported(tmp_path: Path) -> None:
    reports: list[str] = []

    def record_until_weights(stage: str, _done: int, _total: int) -> None:
        reports.append(stage)
        if stage == "writing weights":
            raise KeyboardInterrupt

    for text, said in (("<[OTHER]>", True), ("<[MASK_TOKEN]>", False)):
        checkpoint = tmp_path / str(said)
        checkpoint_from_likeness(replace(MINIATURES["stable-diffcoder"], mask_text=text), checkpoint)
        reports.clear()
        with pytest.raises(KeyboardInterrupt):
            bundle_from_checkpoint(checkpoint, tmp_path / "bundle", progress=record_until_weights)
        assert ("no file names the mask token: using 5, the default of Stable-DiffCoder-8B" in reports) == said


def _refused(checkpoint: Path) -> str:
    with pytest.raises(BadInputError) as caught:
        _files(checkpoint)
    return f"{caught.value.received} {caught.value.expected} {caught.value.remedy}"


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        ({"mask_token_id": None}, {**TOKENIZER_CONFIG, "mask_token": None}, "names no mask token"),
        ({"mask_token_id": 5}, TOKENIZER_CONFIG, "the tokenizer's mask token has the id 2"),
        ({"eos_token_id": None}, {}, "names no end-of-text token"),
        ({"pad_token_id": 24}, TOKENIZER_CONFIG, "a whole number from 0 to 23"),
        ({"pad_token_id": -1}, TOKENIZER_CONFIG, "a whole number from 0 to 23"),
    ],
)
def test_ids_that_are_missing_or_contradict(
    tmp_path: Path, config: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    checkpoint = small_checkpoint(tmp_path)
    edit_config(checkpoint, **config)
    _write_settings(checkpoint, settings)
    assert message in _refused(checkpoint)


def test_other_tokenizers(tmp_path: Path) -> None:
    """Check one with more tokens than the model, and files that are none."""
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    larger = small_checkpoint(tmp_path / "larger", changes={"vocab_size": 25})
    (checkpoint / "tokenizer.json").write_bytes((larger / "tokenizer.json").read_bytes())
    assert "token with the id 24" in _refused(checkpoint)
    for text in (b"{}", b"\xff", b"nothing"):
        (checkpoint / "tokenizer.json").write_bytes(text)
        assert "is not a tokenizer" in _refused(checkpoint)


def _slow_checkpoint(folder: Path, **changes: Any) -> Path:
    """Write Dream's files: no tokenizer.json, special ids above vocab.json, and `changes` to config.json."""
    return slow_tokenizer(small_checkpoint(folder, changes={**ONE_LAYER, **CONFIG_IDS, **changes}))


def test_a_checkpoint_with_a_slow_tokenizer_becomes_a_bundle(tmp_path: Path) -> None:
    checkpoint = _slow_checkpoint(tmp_path / "checkpoint")
    bundle_from_checkpoint(checkpoint, tmp_path / "bundle")
    bundle = Bundle.open(tmp_path / "bundle")
    mask, eos, bos = (IDS[content] for content in ("<|mask|>", "<|endoftext|>", "<|beginoftext|>"))
    assert bundle.manifest.special_tokens == SpecialTokens(mask=mask, eos=eos, pad=eos, bos=bos)
    tokenizer = Tokenizer.open(bundle)
    theirs = transformers.Qwen2Tokenizer.from_pretrained(checkpoint)
    assert tokenizer.special_ids == {i for content, i in IDS.items() if content not in NOT_SPECIAL}
    for text in (*TEXTS, "a<|mask|>b<tool_call>", ""):
        ids = tokenizer.encode(text, add_bos=True, special_tokens=True)
        assert ids == [bos, *theirs.encode(text)]
        assert tokenizer.decode(ids) == text.replace("<|mask|>", "")
    assert not [path for path in bundle.path.iterdir() if path.suffix in (".py", ".txt")]


def test_a_tokenizer_json_overrides_the_vocabulary_files(tmp_path: Path) -> None:
    checkpoint = _slow_checkpoint(tmp_path / "checkpoint")
    made = _files(checkpoint).tokenizer
    (checkpoint / "tokenizer.json").write_bytes(made + b"\n")
    (checkpoint / "merges.txt").write_bytes(b"broken")
    assert _files(checkpoint).tokenizer == made + b"\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": IDS["<|im_end|>"]}, "but the tokenizer's mask token has the id"),
        ({"mask_token_id": 5}, "mask_token_id 5 in config.json is not the id of a special token"),
        ({"eos_token_id": IDS["<tool_call>"]}, "eos_token_id 483 in config.json is not the id of a special token"),
        ({"bos_token_id": 0}, "bos_token_id 0 in config.json is not the id of a special token"),
        ({"vocab_size": 486}, "mask_token_id = 486"),
        ({"vocab_size": 486, "mask_token_id": IDS["<|im_end|>"]}, "has a token with the id 486"),
    ],
)
def test_a_config_that_contradicts_a_slow_tokenizer(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    assert message in _refused(_slow_checkpoint(tmp_path, **changes))
