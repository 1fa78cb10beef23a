"""Rules that the stand-in atc enforces on arguments and graphs, tested as a process."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.runtime.ascend.graphs import altered_graph, quantized
from tests.runtime.ascend.stand_in_om import read_om
from tests.runtime.ascend.stand_in_toolkit import stand_in_toolkit

GOLDEN = json.loads((Path(__file__).parent / "arguments.json").read_text())
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in_toolkit(tmp_path_factory.mktemp("toolkit"))


@pytest.fixture
def run(toolkit: Path, tiny_portable: Path, tmp_path: Path) -> Run:
    """Return a function that runs atc in a folder laid out for the golden arguments."""
    shutil.copytree(tiny_portable, tmp_path / "model")
    for name in ("engine", "cache", "log"):
        (tmp_path / name).mkdir()

    def run(arguments: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(toolkit / "atc"), *arguments[1:]],
            cwd=tmp_path,
            env={**os.environ, "ASCEND_PROCESS_LOG_PATH": str(tmp_path / "log"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def with_flag(case: str, flag: str, value: str | None) -> list[str]:
    """Return the golden arguments with one flag changed, or removed if `value` is None."""
    (first, *_) = GOLDEN[case]
    others = [argument for argument in first if not argument.startswith(f"--{flag}=")]
    return others if value is None else [*others, f"--{flag}={value}"]


def test_successful_run(run: Run, tmp_path: Path) -> None:
    (arguments,) = GOLDEN["three buckets"]
    done = run(arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "ATC start working now, please wait for a moment.",
        "ATC run success, welcome to the next use.",
    ]
    model = read_om(tmp_path / "engine" / "buckets.om")
    assert model.atc_cmdline == arguments
    assert [len(bucket) for bucket in model.buckets] == [15] * 3
    graph = onnx.load_from_string(model.graph)
    locations = {entry.value for t in graph.graph.initializer for entry in t.external_data if entry.key == "location"}
    assert locations == set(model.weights)
    assert len(locations) > 50
    source = onnx.load(tmp_path / "model" / "portable.onnx")
    onnx.external_data_helper.load_external_data_for_model(graph, str(tmp_path / "engine"))
    pairs = list(zip(source.graph.initializer, graph.graph.initializer, strict=True))
    assert all(a.name == b.name and a.raw_data == b.raw_data for a, b in pairs)


@pytest.mark.parametrize(
    ("case", "flag", "value", "code"),
    [
        ("three buckets", "om", "x.om", "E10054"),
        ("three buckets", "soc_version", "Ascend911", "E10001"),
        ("three buckets", "dynamic_dims", ",".join(["1"] * 31), "E10035"),
        ("three buckets", "dynamic_dims", ";".join(f"{i}" + ",1" * 30 for i in range(1, 102)), "E10036"),
        ("three buckets", "dynamic_dims", "1,2;3,4", "E10045"),
        ("three buckets", "input_shape", "input_id:1,8", "E10016"),
        ("one bucket, bf16", "dynamic_dims", "1;2", "E10040"),
        ("one bucket, bf16", "soc_version", "Ascend310P3", "E10001"),
    ],
)
def test_invalid_arguments_are_rejected(
    run: Run, tmp_path: Path, case: str, flag: str, value: str | None, code: str
) -> None:
    done = run(with_flag(case, flag, value))
    assert done.returncode == 255
    start, failed, message = done.stdout.splitlines()
    assert start == "ATC start working now, please wait for a moment."
    assert failed.startswith("ATC run failed")
    assert message.startswith(f"{code}: ")
    assert list((tmp_path / "engine").iterdir()) == []
    (log,) = (tmp_path / "log" / "debug" / "plog").iterdir()
    assert code in log.read_text()


def unknown(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Gelu"


def second_import(model: onnx.ModelProto) -> None:
    model.opset_import.add(domain="com.microsoft", version=1)


@pytest.mark.parametrize(
    ("alter", "case", "precision", "message"),
    [
        (unknown, "three buckets", "origin", "E16002: Optype [ai.onnx::17::Gelu]"),
        (second_import, "three buckets", "origin", "E16005: "),
        (quantized, "three buckets", "fp16", "takes no dynamic shapes"),
        (quantized, "one bucket, bf16", "origin", "takes no high precision"),
    ],
)
def test_unsupported_graphs_are_rejected(
    run: Run, tmp_path: Path, alter: Callable[[onnx.ModelProto], None], case: str, precision: str, message: str
) -> None:
    altered_graph(tmp_path / "model" / "portable.onnx", tmp_path / "model" / "altered.onnx", alter)
    arguments = with_flag(case, "precision_mode_v2", precision)
    done = run([argument.replace("portable.onnx", "altered.onnx") for argument in arguments])
    assert done.returncode == 255
    assert message in done.stdout


def test_quantized_graph_with_fixed_shapes(run: Run, tmp_path: Path) -> None:
    altered_graph(tmp_path / "model" / "portable.onnx", tmp_path / "model" / "altered.onnx", quantized)
    for arguments in GOLDEN["int8, three buckets"]:
        assert run([argument.replace("portable.onnx", "altered.onnx") for argument in arguments]).returncode == 0
    names = sorted(path.name for path in (tmp_path / "engine").iterdir())
    assert names == ["bucket-0.om", "bucket-1.om", "bucket-2.om", "weight"]


def test_simulated_failures(run: Run, tmp_path: Path) -> None:
    (arguments,) = GOLDEN["one bucket, bf16"]
    assert "E40021: broken" in run(arguments, STAND_IN_ATC_FAIL="E40021: broken").stdout
    assert run(arguments, STAND_IN_ATC_NO_OM="1").returncode == 0
    assert not list((tmp_path / "engine").glob("*.om"))
    assert run(arguments, STAND_IN_ATC_SUFFIX="_linux_aarch64").returncode == 0
    assert [path.name for path in (tmp_path / "engine").glob("*.om")] == ["bucket-0_linux_aarch64.om"]
    assert run(["atc", "--help"]).stdout.startswith("usage")
