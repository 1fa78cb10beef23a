"""Bundles with a chat template, which the embedded model lacks."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lopa.tiny import CHECKPOINT

FIRST_FREE_ID = 975
"""First id of the toy's vocabulary that its tokenizer leaves unused."""
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>")
"""Added tokens of Qwen3's tokenizer that answers show."""
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
    "additionalProperties": False,
}
"""JSON schema of the arguments of a tool."""
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
"""JSON schema of a tool without arguments."""
HERMES = (CHECKPOINT.parent / "chat_template.jinja").read_text(encoding="utf-8")
"""The template beside the toy: Hermes's tool calls and a switch of reasoning, in the form of the toy's prompts."""


def with_chat_template(bundle: Path, copy: Path, template: str) -> Path:
    """Copy `bundle` to `copy` with `template` in its tokenizer's config, as an export would do. Return the copy."""
    return with_tokenizer_files(bundle, copy, lambda settings: settings | {"chat_template": template})


def with_added_tokens(bundle: Path, copy: Path, template: str, texts: Sequence[str] = MARKS) -> Path:
    """Copy the toy's `bundle` to `copy` with `template` and added tokens that are not special. Return the copy."""

    def add(tokenizer: dict[str, Any]) -> dict[str, Any]:
        pattern = tokenizer["added_tokens"][-1]
        added = [
            {**pattern, "id": FIRST_FREE_ID + number, "content": text, "special": False}
            for number, text in enumerate(texts)
        ]
        return tokenizer | {"added_tokens": tokenizer["added_tokens"] + added}

    return with_tokenizer_files(bundle, copy, lambda settings: settings | {"chat_template": template}, add)


def with_tokenizer_files(
    bundle: Path,
    copy: Path,
    change_settings: Callable[[dict[str, Any]], dict[str, Any]],
    change_tokenizer: Callable[[dict[str, Any]], dict[str, Any]] = lambda tokenizer: tokenizer,
) -> Path:
    """Copy `bundle` to `copy` with changed tokenizer files, as an export would write them. Return the copy."""
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    for name, change in (("tokenizer_config.json", change_settings), ("tokenizer.json", change_tokenizer)):
        path = copy / name
        path.write_text(json.dumps(change(json.loads(path.read_bytes()))))
        (record,) = (each for each in manifest["files"] if each["path"] == name)
        record.update(size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy
