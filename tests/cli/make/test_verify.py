"""lopa-export verify: correct bundles pass; altered ones fail with exit code 1 and a reason."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from tests.cli.command import outcome, without
from tests.python_path import python_path

from lopa.export.verify.differences import Difference, OutputError
from lopa.export.verify.session_check import Report
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import FileRecord
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.install_hint import pip_install
from lopa.tiny import ADAPTER, CHECKPOINT

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ("--checkpoint", str(CHECKPOINT), "--lora", str(ADAPTER))
verify = partial(outcome, "verify")


@pytest.fixture
def altered(tiny_bundle: Path, tmp_path: Path) -> Path:
    """Copy the bundle, for a test that alters it."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "altered"))


def rewrite_digests(path: Path) -> None:
    """Update the manifest to the present files."""
    manifest = Bundle.open(path).manifest
    files = [
        FileRecord(path=record.path, size=record.size, sha256=sha256_of_file(path / record.path))
        for record in manifest.files
    ]
    (path / "manifest.json").write_bytes(json_from_record(msgspec.structs.replace(manifest, files=files)))


def rewrite_graph(path: Path, change: Callable[[onnx.GraphProto], int], *, name: str = "model.onnx") -> None:
    """Apply `change`, which returns the number of changed places, and update size and digest in the manifest."""
    graph = path / name
    model = onnx.load(graph, load_external_data=False)
    assert change(model.graph) > 0
    onnx.save(model, graph)
    manifest = msgspec.json.decode((path / "manifest.json").read_bytes())
    for record in manifest["files"]:
        if record["path"] == name:
            record["size"] = graph.stat().st_size
    (path / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    rewrite_digests(path)


def failed_rows(output: str) -> set[tuple[str, str]]:
    """Return the output's name, without its layer, and the reference of every table row that ends in NO."""
    rows = [line.split() for line in output.splitlines() if line.endswith(" NO")]
    return {(row[0].rpartition(".")[2], row[1]) for row in rows}


def test_a_right_bundle_passes(tiny_bundle: Path) -> None:
    code, output, errors = verify(tiny_bundle, *SOURCE)
    lines = output.splitlines()
    assert code == 0
    assert lines[0].split() == ["output", "reference", "max", "abs", "max", "rel", "rms", "rel", "tolerance", "ok"]
    assert [line.split()[1] for line in lines[1:21]] == 2 * (["numpy"] * 5 + ["transformers"] * 5)
    assert [line.startswith("cpu/") for line in lines[1:21]] == [False] * 10 + [True] * 10  # the twin for CPUs
    assert all(line.split()[-2:] == ["1e-04", "yes"] for line in lines[1:21])
    (last,) = lines[21:]
    compared = "cpu agrees with the references in 36 cases, tensors, tokenizer and chats with the checkpoint"
    assert re.fullmatch(rf"ok: 6 files unchanged; {compared}, in [\d. min]+ s", last)
    stages = [line for line in errors.splitlines() if not re.search(r"\d s\b", line)]
    before = ["digests", "digests of the checkpoint", "loading the checkpoint"]
    assert stages[:5] == [*before, "comparing (18)", "comparing the cpu graph (18)"]
    assert [line.split()[0] for line in stages[5:]] == ["max", "which", "max", "rms", "tolerance"]
    assert re.search(r"^comparing: 18 in [\d. min]+ s, ", errors, re.MULTILINE)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer_config.json"])
def test_a_flipped_bit_fails(altered: Path, name: str) -> None:
    content = bytearray((altered / name).read_bytes())
    content[len(content) // 3] ^= 4
    (altered / name).write_bytes(content)
    code, output, errors = verify(altered)
    assert code == 1
    assert output == ""
    assert f"error: {name} in {altered} changed since the export" in errors


@pytest.mark.usefixtures("few_cases")
def test_altered_weights_with_a_rewritten_digest_fail(altered: Path) -> None:
    record = Bundle.open(altered).manifest.tensors["layers.3.mlp.down.weight"]
    weights = np.memmap(altered / "model.onnx.data", np.uint8, mode="r+")
    tensor = weights[record.offset : record.offset + record.length].view(record.dtype)
    tensor[7] += 0.1  # one number of 2.4 million
    weights.flush()
    rewrite_digests(altered)

    code, output, errors = verify(altered, *SOURCE)
    assert code == 1
    assert failed_rows(output) >= {("entropy", "transformers"), ("value", "transformers")}
    # numpy has the same wrong weights
    assert {reference for _, reference in failed_rows(output)} == {"transformers", "checkpoint"}
    assert "outputs exceed the tolerance on cpu: " in errors
    assert "entropy against transformers" in errors


@pytest.fixture
def altered_integers(tiny_quantized: Path, tmp_path: Path) -> Path:
    """Alter a quantized bundle like `altered`."""
    return Path(shutil.copytree(tiny_quantized, tmp_path / "altered"))


@pytest.mark.usefixtures("few_cases")
def test_a_right_quantized_bundle_passes(tiny_quantized: Path) -> None:
    code, output, _ = verify(tiny_quantized, *SOURCE)
    lines = output.splitlines()
    assert code == 0
    assert lines[0].split() == ["output", "reference", "max", "abs", "max", "rel", "rms", "rel", "tolerance", "ok"]
    assert re.search(r" in steps +checkpoint ", lines[1])
    assert lines[2].split()[1] == "checkpoint"
    assert [line.split()[1] for line in lines[3:13]] == ["numpy"] * 5 + ["transformers"] * 5
    own, twins = lines[3:13], [line for line in lines if line.startswith("cpu")]
    # Rounded activations must be visible. Zeros would mean that the reference rounds like the engine.
    is_int4 = Bundle.open(tiny_quantized).manifest.quantization.kind == "int4"  # type: ignore[union-attr]
    assert all(1e-3 < float(line.split()[-3]) < float(line.split()[-2]) for line in (twins if is_int4 else own))
    assert {line.split()[-2] for line in own} == {"1e-04" if is_int4 else "1e-01"}


@pytest.mark.usefixtures("few_cases")
def test_an_altered_integer_fails(altered_integers: Path) -> None:
    """The change is too small to affect an output, so verify must compare the integers themselves."""
    record = Bundle.open(altered_integers).manifest.tensors["layers.3.mlp.down.weight"]
    data = np.memmap(altered_integers / "model.onnx.data", np.uint8, mode="r+")
    found = data[record.offset + 5]
    data[record.offset + 5] = found - 2 if found & 0x7 > 3 else found + 2
    data.flush()
    rewrite_digests(altered_integers)
    assert verify(altered_integers)[0] == 0
    code, output, errors = verify(altered_integers, *SOURCE)
    assert code == 1
    assert [row for row in output.splitlines() if row.endswith(" NO")] == [output.splitlines()[1]]
    assert "layers.3.mlp.down.weight in steps against checkpoint" in errors


def another_epsilon(graph: onnx.GraphProto) -> int:
    """Set epsilon to 1e-5 instead of 1e-6, in the first layer only."""
    found = [attribute for node in graph.node for attribute in node.attribute if attribute.name == "epsilon"]
    assert found[0].f == np.float32(1e-6)
    found[0].f = 1e-5
    return 1


def causal_attention(graph: onnx.GraphProto) -> int:
    """Make the last layer's attention causal in addition to its mask."""
    node = [node for node in graph.node if node.op_type == "Attention"][-1]
    kept = [attribute for attribute in node.attribute if attribute.name != "is_causal"]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("is_causal", 1)])
    return 1


@pytest.mark.parametrize("change", [another_epsilon, causal_attention])
def test_an_altered_graph_fails(altered: Path, change: Callable[[onnx.GraphProto], int]) -> None:
    rewrite_graph(altered, change)
    code, output, errors = verify(altered)
    assert code == 1
    assert {("topk_logprobs", "numpy"), ("entropy", "numpy")} <= failed_rows(output)
    assert "outputs exceed the tolerance on cpu" in errors


def test_bad_usage(tiny_bundle: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path,), "has no manifest.json"),
        ((tiny_bundle, "--checkpoint", CHECKPOINT), "add --lora DIR"),
        ((tiny_bundle, "--checkpoint", tmp_path / "absent", "--lora", ADAPTER), "absent does not exist"),
    ):
        code, output, errors = verify(*arguments)
        assert (code, output) == (2, "")
        assert message in errors
        assert "what to do: " in errors


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (SOURCE, 3)])
def test_only_the_checkpoint_needs_torch(tiny_bundle: Path, arguments: tuple[str, ...], code: int) -> None:
    program = without("torch", "transformers", "safetensors", "onnx", "onnxscript")
    result = subprocess.run(
        [sys.executable, "-c", program, "verify", str(tiny_bundle), *arguments],
        env={**os.environ, "PYTHONPATH": python_path(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == code, result.stderr
    if code:
        assert "transformers is not installed" in result.stderr
        assert pip_install("export") in result.stderr
    else:
        assert "cpu agrees with the references in 36 cases" in result.stdout
        assert "The weights were not compared with a checkpoint" in result.stdout


@pytest.mark.parametrize("ok", [True, False])
def test_the_graph_on_cuda_is_named(ok: bool, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OutputError("numpy", "entropy", Difference(1.0, 1.0, 1.0, 1.0), 2.0 if ok else 0.5)
    monkeypatch.setattr("lopa.cli.make.verify.report_from_bundle", lambda *_, **__: Report(1, (error,)))
    monkeypatch.setattr("lopa.runtime.cuda.cuda_operators.loaded_library", lambda number: f"GPU {number} is too old")
    code, output, errors = verify(tiny_bundle, "--device", "cuda:1:tf32")
    assert code == (0 if ok else 1)
    assert "\ncuda:1:tf32 ran model.onnx, without this project's operators: GPU 1 is too old\n" in output
    assert ("verify with LOPA_CUDA_KERNELS=off" in errors) is not ok
