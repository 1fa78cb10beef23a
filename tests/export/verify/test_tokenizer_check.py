"""A bundle's tokenizer against AutoTokenizer of its checkpoint; known mistakes are put back and must be found."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.chat_bundles import HERMES, with_tokenizer_files
from tests.export.checkpoint.test_auto_tokenizer import Files, exported
from tests.runtime.text.chat_templates import TEMPLATES

from lopa.export.verify.report import report_from_bundle
from lopa.export.verify.tokenizer_check import check_tokenizer
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.text import chat_template
from lopa.tiny import ADAPTER, CHECKPOINT

PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}\n{% endfor %}{% endfor %}"
USER_PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}"
    "{% else %}{{ m.content | trim }}{% endif %}{% endfor %}"
)


def _bundle(tiny_bundle: Path, folder: Path, checkpoint: Path) -> Bundle:
    """Return a copy of the toy's bundle with the tokenizer of `checkpoint`, as an export writes it."""
    files = exported(checkpoint)
    return Bundle.open(
        with_tokenizer_files(
            tiny_bundle, folder, lambda _: json.loads(files.tokenizer_config), lambda _: json.loads(files.tokenizer)
        )
    )


def _difference(bundle: Bundle, checkpoint: Path) -> str:
    with pytest.raises(CheckFailedError, match="differs from AutoTokenizer") as caught:
        check_tokenizer(bundle, checkpoint)
    return caught.value.received


def _with_tokens(template: str = PARTS) -> Files:
    files = Files(2)
    files.declare(files.free[0], "<think>", rstrip=True)
    files.declare(files.free[1], "<|im_start|>", special=True)
    files.config["chat_template"] = template
    return files


@pytest.mark.parametrize("template", [PARTS, USER_PARTS, HERMES, *TEMPLATES.values()])
def test_an_export_agrees(tiny_bundle: Path, tmp_path: Path, template: str) -> None:
    checkpoint = _with_tokens(template).write(tmp_path / "checkpoint")
    check_tokenizer(_bundle(tiny_bundle, tmp_path / "bundle", checkpoint), checkpoint)


def test_tokens_of_tokenizer_config_left_out(tiny_bundle: Path, tmp_path: Path) -> None:
    """Put back: the bundle has the checkpoint's tokenizer.json, without the tokens of its other files."""
    files = _with_tokens()
    checkpoint = files.write(tmp_path / "checkpoint")
    left_out = with_tokenizer_files(tiny_bundle, tmp_path / "bundle", lambda _: files.config, lambda _: files.json)
    assert "the text '<think>' becomes" in _difference(Bundle.open(left_out), checkpoint)
    for name in ("rstrip", "special"):
        added = [
            {**entry, "id": int(number), name: False} for number, entry in files.config["added_tokens_decoder"].items()
        ]
        content = {**files.json, "added_tokens": files.json["added_tokens"] + added}
        folder = with_tokenizer_files(tiny_bundle, tmp_path / name, lambda _: files.config, partial(_same, content))
        assert "in transformers" in _difference(Bundle.open(folder), checkpoint)


def _same(content: dict[str, Any], _: dict[str, Any]) -> dict[str, Any]:
    return content


def test_a_bos_of_the_special_tokens_map_left_out(tiny_bundle: Path, tmp_path: Path) -> None:
    files = Files()
    files.config["chat_template"] = "{{ bos_token }}{{ messages[0].content }}"
    files.more["special_tokens_map.json"] = {"bos_token": files.config.pop("bos_token")}
    checkpoint = files.write(tmp_path / "checkpoint")
    check_tokenizer(_bundle(tiny_bundle, tmp_path / "right", checkpoint), checkpoint)
    bundle = with_tokenizer_files(tiny_bundle, tmp_path / "bundle", lambda _: files.config)
    assert "the chat" in _difference(Bundle.open(bundle), checkpoint)
    files.more["special_tokens_map.json"] = {"bos_token": "<|endoftext|>"}
    assert "bos is 1, in transformers 0" in _difference(Bundle.open(bundle), files.write(tmp_path / "other"))


def test_a_bos_of_the_post_processor_left_out(tiny_bundle: Path, tmp_path: Path) -> None:
    """Check a family that adds no token itself."""
    checkpoint = Files().write(tmp_path / "checkpoint")
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    text = {"Sequence": {"id": "A", "type_id": 0}}
    begin = [{"SpecialToken": {"id": "<|beginoftext|>", "type_id": 0}}, text]
    token = {"id": "<|beginoftext|>", "ids": [1], "tokens": ["<|beginoftext|>"]}
    processor = {
        "type": "TemplateProcessing",
        "single": begin,
        "pair": [*begin, {"Sequence": {"id": "B", "type_id": 1}}],
    }
    tokenizer["post_processor"] = {**processor, "special_tokens": {"<|beginoftext|>": token}}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    folder = _bundle(tiny_bundle, tmp_path / "bundle", checkpoint).path
    check_tokenizer(Bundle.open(folder), checkpoint)
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    manifest["decoding"]["add_bos"] = False
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "the prompt" in _difference(Bundle.open(folder), checkpoint)


@pytest.mark.parametrize("template", [PARTS, USER_PARTS])
def test_messages_that_a_template_loses(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """Put back: a template that loops over content parts gets one string."""
    checkpoint = _with_tokens(template).write(tmp_path / "checkpoint")
    bundle = _bundle(tiny_bundle, tmp_path / "bundle", checkpoint)
    monkeypatch.setattr(chat_template, "_takes_only_parts", lambda *_: False)
    assert "the chat" in _difference(bundle, checkpoint)


def test_a_template_left_out(tiny_bundle: Path, tmp_path: Path) -> None:
    checkpoint = _with_tokens().write(tmp_path / "checkpoint")
    bundle = _bundle(tiny_bundle, tmp_path / "bundle", checkpoint)
    settings = {name: value for name, value in exported_settings(checkpoint).items() if name != "chat_template"}
    folder = with_tokenizer_files(bundle.path, tmp_path / "without", lambda _: settings)
    assert "no chat template" in _difference(Bundle.open(folder), checkpoint)


def exported_settings(checkpoint: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(exported(checkpoint).tokenizer_config)
    return settings


def test_verify_reports_the_difference(tiny_bundle: Path, tmp_path: Path) -> None:
    """Check that the comparison is part of verify, whose digests do not cover tokenizer_config.json."""
    checkpoint = shutil.copytree(CHECKPOINT, tmp_path / "checkpoint")
    path = checkpoint / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "additional_special_tokens": ["Question"]}))
    with pytest.raises(CheckFailedError, match=r"the text .Question. becomes|the ids .* become"):
        report_from_bundle(Bundle.open(tiny_bundle), checkpoint=checkpoint, lora=ADAPTER)
