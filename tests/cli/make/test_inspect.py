"""lopa-export inspect: the contents of a bundle, and errors for folders that are no bundle."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import lopa_export

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.quantized_form import cpu_form


def test_inspect_shows_the_contents_of_a_bundle(tiny_bundle: Path) -> None:
    shown = lopa_export("inspect", tiny_bundle)
    assert shown.returncode == 0
    for part in (
        "2,363,008 parameters",
        "5 of hidden size 192",
        "6 heads, 2 key-value heads of 32",
        "mask 2",
        "model.onnx.data",
    ):
        assert part in shown.stdout
    assert "strategy lopa, blocks of 32 tokens, at most 256 tokens, " in shown.stdout
    as_json = lopa_export("inspect", tiny_bundle, "--json")
    manifest = json.loads((tiny_bundle / "manifest.json").read_text())
    params = Bundle.open(tiny_bundle).manifest.params().as_json()
    assert json.loads(as_json.stdout) == {**manifest, "params": params}
    assert (params["strategy"], params["block_size"]) == ("lopa", manifest["decoding"]["block_size"])


def test_inspect_shows_rotary_inputs(tiny_portable: Path, tiny_bundle: Path) -> None:
    assert "\nangles      inputs of the portable graph\n" in lopa_export("inspect", tiny_portable).stdout
    assert "\nangles " not in lopa_export("inspect", tiny_bundle).stdout


@pytest.mark.parametrize("form", ["packed", "auto"])
def test_inspect_shows_the_form_of_quantized_matrices(
    tiny_quantized: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOPA_WEIGHTS", form)
    expected = form if form == "packed" else cpu_form(Bundle.open(tiny_quantized))
    (line,) = re.findall("^weights +(.*)$", lopa_export("inspect", tiny_quantized).stdout, re.MULTILINE)
    assert line.startswith("36 matrices in int")
    assert line.endswith(f", opened as {expected} on this machine's CPU")


@pytest.mark.parametrize("tiny_quantized", ["fp8"], indirect=True)
def test_inspect_shows_how_cpus_open_fp8(tiny_quantized: Path, tmp_path: Path) -> None:
    assert ", opened as float32 on this machine's CPU\n" in lopa_export("inspect", tiny_quantized).stdout
    copy = shutil.copytree(tiny_quantized, tmp_path / "bundle")
    manifest = json.loads((copy / "manifest.json").read_bytes())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "dtype": "bfloat16"}))
    assert ", not for the device cpu\n" in lopa_export("inspect", copy).stdout


def test_inspect_rejects_other_folders(tiny_bundle: Path, tmp_path: Path) -> None:
    nothing = lopa_export("inspect", tmp_path)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "what to do:" in nothing.stderr
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps({**manifest, "schema": 4}))
    newer = lopa_export("inspect", bundle)
    assert newer.returncode == 2
    assert "update lopa-export" in newer.stderr


def test_inspect_shows_experts(family_bundle: Callable[..., Path]) -> None:
    lines = lopa_export("inspect", family_bundle("llada2")).stdout.splitlines()
    experts = next(line for line in lines if line.startswith("experts"))
    assert experts.split(maxsplit=1)[1] == (
        "16 of 32, 4 per token, shared expert of 32, router sigmoid in 2 of 4 groups, dense layers 0"
    )
    touched = lines[lines.index(experts) + 1]  # of 16 experts a row uses 4
    assert touched.strip() == (
        "read by 1 row 25%, a block of 32 100%, 4 branches of 32 100% (if rows choose independently)"
    )
