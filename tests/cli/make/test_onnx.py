import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import without
from tests.export.checkpoints import HALF_OF_TESTS, small_checkpoint
from tests.python_path import python_path

from lopa.cli.main import main
from lopa.runtime.bundle import Bundle
from lopa.runtime.install_hint import pip_install
from lopa.tiny import CHECKPOINT

ROOT = Path(__file__).parents[3]


def test_an_export_with_every_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=HALF_OF_TESTS)
    place = tmp_path / "place" / "bundle"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text("an older bundle")
    arguments = ["onnx", str(checkpoint), "-o", str(place), "--dtype", "fp16", "--with-logits", "--overwrite"]
    arguments += ["--stages", "3", "--plugins", "--rotary-inputs"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    manifest = Bundle.open(place).manifest
    assert (manifest.dtype, manifest.with_logits) == ("float16", True)
    assert [stage.end_layer for stage in manifest.stages] == [1, 2, 3]
    assert manifest.plugins == ["TokenStatistics"]
    assert manifest.rotary_inputs == ["standard"]
    printed = capsys.readouterr()
    assert re.fullmatch(rf"{re.escape(str(place))}: 39 tensors, 0.3 MB, float16, in [\d. min]+ s\n", printed.out)
    assert re.search(r"^writing weights: 0.2 MB in [\d.]+ s, ", printed.err, re.MULTILINE)
    stages = [line for line in printed.err.splitlines() if not re.search(r"\d s\b", line)]
    assert stages == [
        "reading the checkpoint",
        "loading torch",
        "writing weights (0.2 MB)",
        *(
            f"{stage} {graph}"
            for graph in ("model.onnx", *(f"model.stage-{number}-of-3.onnx" for number in range(3)))
            for stage in ("tracing", "checking and writing")
        ),
        "hashing the source",
    ]


def _without_torch(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = without("torch", "onnx", "onnxscript", "onnx_ir", "transformers", "safetensors")
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT / "src")}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_options_of_quantization_need_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["onnx", str(CHECKPOINT), "-o", str(tmp_path / "bundle"), "--no-quantize-head", "--quantize-exclude", "*"])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert "error: --quantize-exclude, --[no-]quantize-head without --quantize\n" in printed
    assert "expected: --quantize int8, int4 or fp8\n" in printed


def test_without_torch(tmp_path: Path) -> None:
    ended = _without_torch("onnx", str(CHECKPOINT), "-o", str(tmp_path / "bundle"))
    assert ended.returncode == 3
    assert pip_install("export") in ended.stderr
    assert "Traceback" not in ended.stderr
    helped = _without_torch("onnx", "--help")
    assert helped.returncode == 0
    assert "--with-logits" in helped.stdout
