"""The portable dialect on the command line: export, verify, inspect, lint."""

from pathlib import Path

import pytest
from tests.cli.command import outcome
from tests.export.checkpoints import small_checkpoint

from lopa.runtime.bundle import Bundle


def test_both_dialects_and_stages_in_one_bundle(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    bundle = tmp_path / "bundle"
    assert outcome("onnx", checkpoint, "-o", bundle, "--dialect", "both", "--stages", "2")[0] == 0
    opened = Bundle.open(bundle)
    assert opened.with_dialect("portable").manifest.stages == []
    assert len(opened.with_dialect("standard").manifest.stages) == 2
    code, output, errors = outcome("verify", bundle)
    assert code == 0
    stages = [
        "digests",
        "comparing (18)",
        "comparing",
        "comparing the cpu graph (18)",
        "comparing the cpu graph",
        "comparing the portable graph (18)",
        "comparing the portable graph",
    ]
    shown = [line.partition(":")[0] for line in errors.splitlines()]
    assert shown[: len(stages)] == stages
    graphs = [row.split()[0].rpartition("/")[0] for row in output.splitlines()[1:16]]
    assert graphs == [""] * 5 + ["cpu"] * 5 + ["portable"] * 5
    assert "ok: 10 files unchanged; cpu agrees with the references in 54 cases" in output
    code, output, _ = outcome("verify", bundle, "--device", "cpu+cpu")
    assert code == 0
    assert "portable/" not in output  # a pipeline runs the stages, which are standard graphs
    shown = outcome("inspect", bundle)[1]
    assert "standard and portable dialect" in shown
    assert len([line for line in shown.splitlines() if line.startswith("stage ")]) == 2
    code, output, _ = outcome("inspect", bundle, "--lint")
    assert code == 0
    assert output.startswith(f"ok: {bundle / 'portable.onnx'}: ")


def test_lint_of_a_standard_graph_names_the_violations(tiny_bundle: Path) -> None:
    code, output, errors = outcome("inspect", tiny_bundle, "--lint")
    lines = output.splitlines()
    assert code == 1
    assert lines[0] == "opset import: model (opset 23): imports ai.onnx 23; import only ai.onnx 17"
    (attention,) = [line for line in lines if "unregistered operator: Attention" in line]
    assert "layers.0.attention/Attention (opset 23)" in attention
    assert attention.endswith(" (and 4 more)")
    assert any(line.startswith("rank: Expand layers.0.attention/Expand (opset 23, 5 axes)") for line in lines)
    assert len(lines) == len(set(lines)) < 60
    assert "--dialect portable or both" in errors


@pytest.mark.usefixtures("few_cases")
def test_a_quantized_portable_bundle_is_verified_and_inspected(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes={"intermediate_size": 64})
    bundle = tmp_path / "bundle"
    arguments = ("onnx", checkpoint, "-o", bundle, "--quantize", "int8", "--dialect", "portable")
    assert outcome(*arguments)[0] == 0
    code, output, _ = outcome("verify", bundle, "--checkpoint", checkpoint)
    assert code == 0
    tolerances = {line.split()[-2] for line in output.splitlines() if line.split()[1] in ("numpy", "transformers")}
    assert tolerances == {"1e-04"}  # only weights are rounded
    shown = outcome("inspect", bundle)[1]
    assert "portable.webgpu.onnx  replaces portable.onnx" in shown
    assert "activations" not in shown
    code, output, _ = outcome("inspect", bundle, "--lint")
    assert code == 1
    assert "DequantizeLinear" in output
    assert "export in floating point" in output


@pytest.mark.parametrize(("dialect", "kind"), [("portable", "int8"), ("both", "int4")])
def test_quantization_in_bfloat16_and_the_portable_dialect_exclude_each_other(
    tmp_path: Path, dialect: str, kind: str
) -> None:
    arguments = ("onnx", "nowhere", "-o", tmp_path / "b", "--dialect", dialect, "--quantize", kind, "--dtype", "bf16")
    code, _, errors = outcome(*arguments)
    assert code == 2
    assert f"--quantize {kind} and --dtype bfloat16 with the portable dialect" in errors
    assert "what to do:" in errors
    assert list(tmp_path.iterdir()) == []
