"""The graph is compared with its manifest on opening."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session


def edited(bundle: Path, target: Path, changes: dict[str, Any]) -> Bundle:
    shutil.copytree(bundle, target)
    content = json.loads((target / MANIFEST_NAME).read_bytes())
    for name, value in changes.items():
        content[name] = {**content[name], **value} if isinstance(value, dict) else value
    (target / MANIFEST_NAME).write_text(json.dumps(content))
    return Bundle.open(target)


CONTRADICTIONS: list[tuple[str, str, dict[str, Any], str]] = [
    ("tiny_bundle", "cpu", {"dimensions": {"kv_heads": 1}}, "past_key_values"),
    ("tiny_bundle", "cpu", {"dimensions": {"layers": 4}}, "the inputs of"),
    ("tiny_bundle", "cpu", {"dtype": "float16", "twins": []}, "past_key_values"),
    ("tiny_bundle", "cpu", {"with_logits": True}, "the outputs of"),
    ("tiny_portable", "cpu", {"dimensions": {"kv_heads": 1}}, "window_key_values"),
    ("tiny_portable", "cpu", {"dimensions": {"head_size": 64, "partial_rotary_size": 32}}, "past_key_values"),
    ("tiny_portable", "cpu", {"dimensions": {"vocab_size": 1025}}, "logits tensor"),
    ("tiny_portable", "cpu", {"dialect": "standard", "rotary_inputs": []}, "the inputs of"),
    ("tiny_staged", "cpu+cpu", {"dimensions": {"hidden_size": 96}}, "next_hidden"),
    ("tiny_staged", "cpu+cpu", {"dimensions": {"head_size": 64}}, "past_key_values"),
    ("tiny_bundle", "numpy", {"dimensions": {"heads": 2}}, "from its dimensions"),
    ("tiny_bundle", "numpy", {"dimensions": {"vocab_size": 1025}}, "from its dimensions"),
]


@pytest.mark.parametrize(("source", "device", "changes", "message"), CONTRADICTIONS)
def test_contradicting_manifest_raises(
    source: str, device: str, changes: dict[str, Any], message: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bundle = edited(request.getfixturevalue(source), tmp_path / "bundle", changes)
    with pytest.raises(BadInputError, match=message):
        open_session(bundle, device, threads=1)


@pytest.mark.parametrize(
    ("source", "dialects", "device"),
    [
        ("tiny_bundle", ["standard"], "cpu"),
        ("tiny_rotary", [], "cpu"),
        ("tiny_rotary", [], "cpu+cpu"),
        ("tiny_portable", [], "cpu"),
    ],
)
def test_contradicting_rotary_inputs_raise(
    source: str, dialects: list[str], device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bundle = edited(request.getfixturevalue(source), tmp_path / "bundle", {"rotary_inputs": dialects})
    with pytest.raises(BadInputError, match=r"the inputs of .*position_ids.*rotary_cos") as caught:
        open_session(bundle, device, threads=1)
    assert caught.value.remedy == "export the checkpoint again"


def test_swapped_stages_raise(tiny_staged: Path, tmp_path: Path) -> None:
    stages = json.loads((tiny_staged / MANIFEST_NAME).read_bytes())["stages"]
    names = [stage["graph"] for stage in stages]
    swapped = [{**stage, "graph": name} for stage, name in zip(stages, reversed(names), strict=True)]
    bundle = edited(tiny_staged, tmp_path / "bundle", {"stages": swapped})
    with pytest.raises(BadInputError, match="the inputs of"):
        open_session(bundle, "cpu+cpu", threads=1)
