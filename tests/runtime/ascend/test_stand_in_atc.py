"""Rules that the stand-in atc enforces on arguments and graphs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from tests.runtime.ascend import stand_in_atc
from tests.runtime.ascend.graphs import altered_graph, quantized
from tests.runtime.ascend.stand_in_om import read_om

GOLDEN = json.loads((Path(__file__).parent / "arguments.json").read_text())


@pytest.fixture
def folder(tiny_portable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder laid out for the golden arguments, in which atc runs."""
    shutil.copytree(tiny_portable, tmp_path / "model")
    for name in ("engine", "cache", "log"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASCEND_PROCESS_LOG_PATH", str(tmp_path / "log"))
    for name in ("FAIL", "SLEEP", "SUFFIX", "NO_OM", "CALLS"):
        monkeypatch.delenv(f"STAND_IN_ATC_{name}", raising=False)
    return tmp_path


def run(case: str, **changes: str) -> int:
    """Run atc with the first golden arguments of `case` and other values of some flags."""
    arguments = [each for each in GOLDEN[case][0][1:] if each[2:].partition("=")[0] not in changes]
    return stand_in_atc.main([*arguments, *(f"--{flag}={value}" for flag, value in changes.items())])


def test_successful_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("three buckets") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ATC start working now, please wait for a moment.",
        "ATC run success, welcome to the next use.",
    ]
    model = read_om(folder / "engine" / "buckets.om")
    assert [model.atc_cmdline] == GOLDEN["three buckets"]
    assert [len(bucket) for bucket in model.buckets] == [15] * 3
    graph = onnx.load_from_string(model.graph)
    source = onnx.load(folder / "model" / "portable.onnx")
    onnx.external_data_helper.load_external_data_for_model(graph, str(folder / "engine"))
    pairs = list(zip(source.graph.initializer, graph.graph.initializer, strict=True))
    assert all(a.name == b.name and a.raw_data == b.raw_data for a, b in pairs)


@pytest.mark.parametrize(
    ("case", "flag", "value", "code"),
    [
        ("three buckets", "om", "x.om", "E10054"),
        ("three buckets", "soc_version", "Ascend911", "E10001"),
        ("three buckets", "dynamic_dims", ";".join(f"{i}" + ",1" * 30 for i in range(1, 102)), "E10036"),
        ("three buckets", "dynamic_dims", "1,2;3,4", "E10045"),
        ("one bucket, bf16", "soc_version", "Ascend310P3", "E10001"),
    ],
)
def test_invalid_arguments_are_rejected(
    folder: Path, capsys: pytest.CaptureFixture[str], case: str, flag: str, value: str, code: str
) -> None:
    assert run(case, **{flag: value}) == 255
    _, failed, message = capsys.readouterr().out.splitlines()
    assert failed.startswith("ATC run failed")
    assert message.startswith(f"{code}: ")
    assert list((folder / "engine").iterdir()) == []
    (log,) = (folder / "log" / "debug" / "plog").iterdir()
    assert code in log.read_text()


def unknown(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Gelu"


@pytest.mark.parametrize(
    ("alter", "case", "message"),
    [
        (unknown, "three buckets", "E16002: Optype [ai.onnx::17::Gelu]"),
        (quantized, "three buckets", "takes no dynamic shapes"),
    ],
)
def test_unsupported_graphs_are_rejected(
    folder: Path, capsys: pytest.CaptureFixture[str], alter: Callable[[onnx.ModelProto], None], case: str, message: str
) -> None:
    altered_graph(folder / "model" / "portable.onnx", folder / "model" / "altered.onnx", alter)
    assert run(case, model="model/altered.onnx") == 255
    assert message in capsys.readouterr().out
