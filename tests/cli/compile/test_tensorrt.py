"""lopa-export tensorrt, over the recorded API of TensorRT."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.tensorrt.buckets import DEVICE, plan_file
from tests.runtime.tensorrt.recorded_api import RTX
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

from lopa.cli.main import main
from lopa.runtime.bundle import Bundle


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Return a copy with shape buckets."""
    folder = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    plan_file(Bundle.open(folder), folder / "shape_buckets.json")
    return folder


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with TensorRT 11 and a GPU."""
    monkeypatch.setitem(sys.modules, "tensorrt", stand_in_tensorrt(11))
    monkeypatch.setattr("lopa.cli.compile.tensorrt.cuda_device", lambda _number: DEVICE)


def run(*arguments: object, command: str = "tensorrt") -> int:
    with pytest.raises(SystemExit) as caught:
        main([command, *map(str, arguments)])
    return int(caught.value.code or 0)


@pytest.mark.usefixtures("machine")
def test_build_and_build_again(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(bundle, "--workspace", "0.5", "--weight-streaming") == 0
    shown = capsys.readouterr()
    assert "4 buckets and a profile for prompts" in shown.out
    assert "Stand-in GPU, TensorRT 11.4.0.106, not verified; layers in layers.json" in shown.out
    lines = [re.sub(r"( \(\d+\)|: \d+ in .*)$", "", line) for line in shown.err.splitlines()]
    phases = ["TensorRT: Building engine", "TensorRT: Computing profile costs"]
    assert sorted(lines) == sorted(2 * phases)
    assert (bundle / "engines" / "tensorrt-sm90-11.4.0.106" / "engine.plan").is_file()
    assert run(bundle, "--workspace", "0.5", "--weight-streaming") == 0
    assert "up to date, nothing was built" in capsys.readouterr().out
    assert run(bundle, "--int8", "--fp8") == 2
    assert "choose one" in capsys.readouterr().err
    assert run(bundle, "--strip-weights", "--version-compatible", "--int8") == 0
    assert "up to date" not in capsys.readouterr().out


@pytest.mark.usefixtures("machine")
def test_a_plan_at_another_place(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "shape_buckets.json").rename(tmp_path / "other.json")
    assert run(bundle) == 2
    assert f"{bundle / 'shape_buckets.json'} does not exist" in capsys.readouterr().err
    assert run(bundle, "--buckets", tmp_path / "other.json", "--timing-cache", tmp_path / "t") == 0
    assert (tmp_path / "t").stat().st_size > 0


def test_without_tensorrt(bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert run(bundle) == 3
    assert "pip install" in capsys.readouterr().err


@pytest.mark.usefixtures("machine")
def test_a_portable_bundle(tiny_portable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tiny_portable) == 2
    assert "--dialect standard or --dialect both" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("tensorrt", (), "FP8 products for Stand-in GPU, of compute capability 8.6"),
        ("tensorrt", ("--rtx", "--compute-capability", "86"), "FP8 products for compute capability 8.6"),
        ("tensorrt", ("--int8",), "whose matrices are fp8"),
        ("ascend", ("--soc-version", "Ascend910B1"), "a bundle with fp8 matrices"),
        ("qnn", ("--soc", "SM8650"), "has FP8 matrices, which QNN lacks"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_fp8_is_refused_before_a_plan_is_requested(
    export_tiny: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", stand_in_tensorrt(RTX))
    monkeypatch.setattr("lopa.cli.compile.tensorrt.cuda_device", lambda _number: replace(DEVICE, capability="8.6"))
    assert run(export_tiny(with_logits=False, quantize="fp8"), *arguments, command=command) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("machine")
def test_inspect_lists_engines(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(bundle)
    assert run(bundle, command="inspect") == 0
    line = "engine      tensorrt-sm90-11.4.0.106  for Stand-in GPU, TensorRT 11.4.0.106, 4 buckets, not verified"
    assert f"{line}, matches the weights" in capsys.readouterr().out
    engine = bundle / "engines" / "tensorrt-sm90-11.4.0.106" / "engine.json"
    fields = json.loads(engine.read_bytes())
    engine.write_text(json.dumps(fields | {"weights_sha256": "00"}))
    assert run(bundle, command="inspect") == 0
    assert f"{line}, made from OTHER weights: build it again" in capsys.readouterr().out
    engine.write_text("{")
    assert run(bundle, command="inspect") == 0
    assert "tensorrt-sm90-11.4.0.106  cannot be used: " in capsys.readouterr().out


def test_engines_for_rtx(bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Simulate a missing driver, so that the build runs without a GPU."""
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", stand_in_tensorrt(RTX))
    assert run(bundle, "--rtx", "--compute-capability", "8.9", "--compute-capability", "120") == 0
    shown = capsys.readouterr()
    assert "GPUs of compute capability 8.9, 12.0, TensorRT for RTX 1.7.1.116, not verified" in shown.out
    assert "no layers.json: this machine has no GPU" in shown.out
    assert (bundle / "engines" / "tensorrt-rtx-sm89-sm120-1.7.1.116" / "engine.plan").is_file()
    for arguments, message in (
        (("--compute-capability", "8.9"), "--compute-capability needs --rtx"),
        (("--rtx", "--compute-capability", "5.0"), "builds for: 7.5, 8.0"),
        (("--rtx", "--version-compatible"), "--version-compatible with --rtx"),
    ):
        assert run(bundle, *arguments) == 2
        assert message in capsys.readouterr().err
    for name in ("tensorrt_rtx_bindings", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run(bundle, "--rtx") == 3
    assert "TensorRT for RTX cannot be imported" in capsys.readouterr().err
