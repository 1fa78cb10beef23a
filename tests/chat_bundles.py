"""Bundles with a chat template, which the embedded model lacks."""

import hashlib
import json
import shutil
from pathlib import Path


def with_chat_template(bundle: Path, copy: Path, template: str) -> Path:
    """Copy `bundle` to `copy` with `template` in its tokenizer's config, as an export would do. Return the copy."""
    shutil.copytree(bundle, copy)
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    manifest = json.loads((copy / "manifest.json").read_text())
    for record in manifest["files"]:
        if record["path"] == path.name:
            record.update(size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy
