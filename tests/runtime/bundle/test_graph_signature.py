"""The graph is compared with its manifest on opening."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.cuda.conftest import cudart, machine  # noqa: F401

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import open_session

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"dimensions": {"kv_heads": 1}}, "past_key_values"),
    ({"dimensions": {"head_size": 64}}, "past_key_values"),
    ({"dimensions": {"layers": 4}}, "the inputs of"),
    ({"dtype": "float16"}, "past_key_values"),
    ({"with_logits": True}, "the outputs of"),
]


def edited(bundle: Path, target: Path, changes: dict[str, Any]) -> Bundle:
    shutil.copytree(bundle, target)
    content = json.loads((target / MANIFEST_NAME).read_bytes())
    for name, value in changes.items():
        content[name] = {**content[name], **value} if isinstance(value, dict) else value
    (target / MANIFEST_NAME).write_text(json.dumps(content))
    return Bundle.open(target)


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS)
def test_contradicting_manifest_raises(
    tiny_bundle: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    bundle = edited(tiny_bundle, tmp_path / "bundle", changes)
    with pytest.raises(BadInputError, match=message):
        open_session(bundle, "cpu", threads=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimensions": {"kv_heads": 1}}, "window_key_values"),
        ({"dimensions": {"head_size": 64, "partial_rotary_size": 32}}, "past_key_values"),
        ({"dimensions": {"vocab_size": 1025}}, "logits tensor"),
        ({"dtype": "float16"}, "past_key_values"),
        ({"dialect": "standard", "rotary_inputs": []}, "the inputs of"),
    ],
)
def test_contradicting_manifest_raises_in_the_portable_dialect(
    tiny_portable: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    bundle = edited(tiny_portable, tmp_path / "bundle", changes)
    with pytest.raises(BadInputError, match=message):
        open_session(bundle, "cpu", threads=1)


@pytest.mark.parametrize(
    ("source", "dialects"), [("tiny_bundle", ["standard"]), ("tiny_rotary", []), ("tiny_portable", [])]
)
@pytest.mark.parametrize("device", ["cpu", "cpu+cpu"])
def test_contradicting_rotary_inputs_raise(
    source: str, dialects: list[str], device: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if device == "cpu+cpu" and source != "tiny_rotary":
        pytest.skip("the bundle has no stages")
    bundle = edited(request.getfixturevalue(source), tmp_path / "bundle", {"rotary_inputs": dialects})
    with pytest.raises(BadInputError, match=r"the inputs of .*position_ids.*rotary_cos") as caught:
        open_session(bundle, device, threads=1)
    assert caught.value.remedy == "export the checkpoint again"


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"dimensions": {"hidden_size": 96}}, "next_hidden"), ({"dimensions": {"head_size": 64}}, "past_key_values")],
)
def test_contradicting_manifest_raises_for_stages(
    tiny_staged: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    bundle = edited(tiny_staged, tmp_path / "bundle", changes)
    with pytest.raises(BadInputError, match=message):
        open_session(bundle, "cpu+cpu", threads=1)


def test_swapped_stages_raise(tiny_staged: Path, tmp_path: Path) -> None:
    stages = json.loads((tiny_staged / MANIFEST_NAME).read_bytes())["stages"]
    names = [stage["graph"] for stage in stages]
    swapped = [{**stage, "graph": name} for stage, name in zip(stages, reversed(names), strict=True)]
    bundle = edited(tiny_staged, tmp_path / "bundle", {"stages": swapped})
    with pytest.raises(BadInputError, match="the inputs of"):
        open_session(bundle, "cpu+cpu", threads=1)


@pytest.mark.parametrize("changes", [{"heads": 2}, {"vocab_size": 1025}])
def test_numpy_session_compares_weights_with_dimensions(
    tiny_bundle: Path, tmp_path: Path, changes: dict[str, int]
) -> None:
    bundle = edited(tiny_bundle, tmp_path / "bundle", {"dimensions": changes})
    with pytest.raises(BadInputError, match="from its dimensions"):
        open_session(bundle, "numpy")
