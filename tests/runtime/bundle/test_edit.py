"""Edits of decoding defaults and chat templates: atomic, limited to the manifest, and reversible."""

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime import Decoder
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.edit import CHAT_TEMPLATE, edit_bundle, write_manifest
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.text.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DEFAULTS: dict[str, Any] = {
    "strategy": "eb",
    "gamma": math.inf,
    "branches": 4,
    "unmask_first_masked": True,
    "stop": ("#",),
}


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


def edit(folder: Path, **changes: Any) -> Bundle:
    edited = edit_bundle(Bundle.open(folder), **changes)
    write_manifest(edited)
    return edited


def test_defaults_apply_unless_the_request_sets_the_option(bundle: Path) -> None:
    edit(bundle, defaults=DEFAULTS)
    own = Bundle.open(bundle).manifest.decoding.options()
    with Decoder.open(bundle, ["numpy"]) as decoder:
        assert decoder.params() == resolve(GenerationConfig(**DEFAULTS), own=own)
        options = {"gamma": 0.1, "max_new_tokens": 9}
        assert decoder.params(decoder.config(**options)) == resolve(
            GenerationConfig(**{**DEFAULTS, **options}), own=own
        )
        other: dict[str, Any] = {
            "block_size": 32, "unmask_first_masked": True, "stop": ("#",), "strategy": "threshold",
        }  # fmt: skip
        changed = dataclasses.replace(decoder.config(strategy="dream", max_new_tokens=64), strategy="threshold")
        for config, more in ((decoder.config(strategy="threshold"), {}), (changed, {"max_new_tokens": 64})):
            assert decoder.params(config) == resolve(GenerationConfig(**other, **more), own=own)


def test_only_the_manifest_changes_and_unset_restores_it(bundle: Path) -> None:
    before, raw = digests(bundle), (bundle / MANIFEST_NAME).read_bytes()
    (bundle.parent / "old").hardlink_to(bundle / MANIFEST_NAME)
    os.chmod(bundle / MANIFEST_NAME, 0o640)  # noqa: PTH101
    edit(bundle, defaults=DEFAULTS, chat_template=TEMPLATE)
    changed = digests(bundle)
    assert {name for name in {*before, *changed} if before.get(name) != changed.get(name)} == {MANIFEST_NAME}
    opened = Bundle.open(bundle)
    assert opened.altered_files() == []
    assert opened.twin("cpu") == Bundle.open(bundle).file("model.cpu.onnx")  # the twin still matches
    assert (bundle / MANIFEST_NAME).stat().st_mode & 0o777 == 0o640
    assert (bundle.parent / "old").read_bytes() == raw, "the file is replaced as a whole"
    edit(bundle, unset=[*opened.manifest.defaults, CHAT_TEMPLATE])
    assert (bundle / MANIFEST_NAME).read_bytes() == raw


def test_later_edits_drop_conflicting_defaults(bundle: Path) -> None:
    edit(bundle, defaults=DEFAULTS)
    assert edit(bundle, defaults={"strategy": "d2f", "skip_threshold": 0.8}).manifest.defaults == {
        "strategy": "d2f",
        "skip_threshold": 0.8,
        "unmask_first_masked": True,
        "stop": ["#"],
    }
    assert edit(bundle, unset=["stop", "strategy"], defaults={"branches": 2}).manifest.defaults == {
        "branches": 2,
        "skip_threshold": 0.8,
        "unmask_first_masked": True,
    }
    assert Bundle.open(bundle).manifest.chat_template is None


def test_chat_template_replaces_the_exported_one(bundle: Path) -> None:
    talk = [{"role": "user", "content": "Hello"}]
    assert not Tokenizer.open(Bundle.open(bundle)).has_chat_template
    edit(bundle, chat_template=TEMPLATE)
    assert Tokenizer.open(Bundle.open(bundle)).chat_text(talk) == "<user>Hello"
    with Decoder.open(bundle, ["numpy"], chat_template=TEMPLATE.replace("<", "[")) as decoder:
        assert decoder.tokenizer.chat_text(talk) == "[user>Hello"
    edit(bundle, unset=[CHAT_TEMPLATE])
    assert not Tokenizer.open(Bundle.open(bundle)).has_chat_template


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"defaults": {"gama": 1}}, "gama"),
        ({"defaults": {"gamma": 0.2}}, "gamma 0.2 with strategy 'lopa'"),
        ({"defaults": {"max_new_tokens": 2048}}, "max_new_tokens 2048"),
        ({"defaults": {"editing_threshold": 0.5}}, "editing_threshold 0.5"),
        ({"defaults": {"top_k": 50}}, "top_k 50"),
        ({"defaults": {"preset": "none", "top_k": 0}}, "top_k 0"),
        ({"defaults": {"alignment": "sliding", "attention": "causal"}}, "alignment 'sliding'"),
        ({"unset": ["branches"]}, "cannot unset 'branches'"),
    ],
)
def test_unusable_edits_raise_and_change_nothing(bundle: Path, changes: dict[str, Any], named: str) -> None:
    before = digests(bundle)
    with pytest.raises(BadInputError) as caught:
        edit(bundle, **changes)
    assert named in caught.value.received
    assert digests(bundle) == before


def test_an_older_bundle_with_an_unusable_default_can_be_edited(bundle: Path) -> None:
    path = bundle / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "defaults": {"top_k": 50}}))
    with pytest.raises(BadInputError, match="top_k 50 by default"):
        edit(bundle, defaults={"branches": 2})
    assert edit(bundle, unset=["top_k"]).manifest.defaults == {}


@pytest.mark.parametrize(
    "value",
    [
        {"gamma": 0.2},
        {"temperature": "inf"},
        [],
    ],
    ids=str,
)
def test_invalid_defaults_raise_on_open(bundle: Path, value: object) -> None:
    path = bundle / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "defaults": value}))
    with pytest.raises(BadInputError, match="defaults"):
        Bundle.open(bundle)
