import json
import re
import shutil
from pathlib import Path

import pytest
from tests.cli.decode.test_generate import lopa_export


def test_inspect_shows_what_the_bundle_holds(tiny_bundle: Path) -> None:
    shown = lopa_export("inspect", tiny_bundle)
    assert shown.returncode == 0
    for part in (
        "2,363,008 parameters, float32",
        "5 of hidden size 192",
        "6 heads, 2 key-value heads of 32",
        "mask 2",
        "model.onnx.data",
    ):
        assert part in shown.stdout
    as_json = lopa_export("inspect", tiny_bundle, "--json")
    assert json.loads(as_json.stdout) == json.loads((tiny_bundle / "manifest.json").read_text())


def test_inspect_refuses_what_is_no_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    nothing = lopa_export("inspect", tmp_path)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "what to do:" in nothing.stderr
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "schema": 3}))
    newer = lopa_export("inspect", bundle)
    assert newer.returncode == 2
    assert "update lopa-export" in newer.stderr


def test_doctor_lists_abilities_and_devices() -> None:
    result = lopa_export("doctor")
    assert result.returncode == 0
    for part in ("python", "decode (runtime): numpy", "export and verify: torch", "Ascend", "cpu: ready", "cuda:N:"):
        assert part in result.stdout
    asked = re.findall(r" install (.*)", result.stdout)
    assert asked
    assert not any("lopa" in words for words in asked)  # no remedy asks an index for this project


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"], ["onnx", "-h"]])
def test_help_and_version(arguments: list[str]) -> None:
    result = lopa_export(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


def test_unknown_command_is_bad_usage() -> None:
    result = lopa_export("exporrt")
    assert result.returncode == 2
    assert "exporrt" in result.stderr
