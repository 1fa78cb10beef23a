"""lopa-export ascend with a stand-in for ATC. The real ATC has not been run."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.export.ascend.test_process import ends
from tests.runtime.ascend.graphs import altered_graph, quantized
from tests.runtime.ascend.stand_in_om import read_om
from tests.runtime.ascend.stand_in_toolkit import VERSION, stand_in_toolkit
from tests.runtime.bundle.test_buckets import bucket

from lopa.cli.main import main
from lopa.export.ascend.contract import atc_contract
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME, BucketPlan

Command = Callable[..., tuple[int, str, str]]
SOC = ("--soc-version", "Ascend910B1")


@pytest.fixture
def ascend(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs lopa-export ascend and returns its exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["ascend", *map(str, arguments)])
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


def runs(calls: Path) -> list[list[str]]:
    return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def change_plan(bundle: Path, **changes: object) -> None:
    path = bundle / BUCKETS_NAME
    plan = msgspec.json.decode(path.read_bytes(), type=BucketPlan)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, **changes)))


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_build(planned_bundle: Path, atc_calls: Path, ascend: Command, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = (planned_bundle / "manifest.json").read_bytes()
    code, output, errors = ascend(planned_bundle, *SOC)
    assert code == 0, errors
    folder = planned_bundle / "engines" / "ascend-910B1"
    assert output.startswith(f"{folder}: 3 buckets, 1 OM, ")
    assert "atc compiles buckets for Ascend910B1; this takes minutes" in errors
    engine = ASCEND_ENGINES.read(folder).engine
    assert engine.commands == runs(atc_calls)
    assert (engine.soc_version, engine.precision, engine.dynamic, engine.int8) == ("Ascend910B1", "origin", True, False)
    assert engine.cann_version == VERSION
    model = read_om(folder / "buckets.om")
    assert [each.dims for each in engine.buckets] == model.buckets
    assert [(each.name, each.dims, each.dtype) for each in engine.inputs] == [
        (each.name, each.dims, each.dtype) for each in model.inputs
    ]
    assert [each.name for each in engine.outputs] == [each.name for each in model.outputs]
    assert {record.path for record in engine.files} == {"buckets.om", "atc.log", *model.weights}
    assert sorted(path.name for path in folder.iterdir()) == ["atc.log", "buckets.om", "engine.json", "weight"]
    assert files_of(planned_bundle / "engines")[0] == "ascend-910B1"
    assert (folder / "atc.log").read_text().splitlines()[-1] == "ATC run success, welcome to the next use."
    assert (planned_bundle / "manifest.json").read_bytes() == manifest
    with pytest.raises(SystemExit):
        main(["inspect", str(planned_bundle)])
    shown = capsys.readouterr().out
    assert "ascend-910B1  for Ascend910B1, 3 buckets in 1 OM, precision origin, matches the weights" in shown


def test_an_unchanged_request_runs_nothing(planned_bundle: Path, atc_calls: Path, ascend: Command) -> None:
    assert ascend(planned_bundle, *SOC)[0] == 0
    folder = planned_bundle / "engines" / "ascend-910B1"
    before = (folder / "engine.json").read_bytes()
    code, output, errors = ascend(planned_bundle, *SOC)
    assert (code, errors) == (0, "")
    assert "up to date, nothing was run" in output
    assert len(runs(atc_calls)) == 1
    assert (folder / "engine.json").read_bytes() == before


def another_version(bundle: Path) -> None:
    stand_in_toolkit(bundle.parent / "toolkit", "0.1.stand-in")


def another_plan(bundle: Path) -> None:
    change_plan(bundle, buckets=[bucket(1, 4, 64, 64), bucket(1, 1, 96, 128)])


def damaged_om(bundle: Path) -> None:
    om = bundle / "engines" / "ascend-910B1" / "buckets.om"
    om.write_bytes(om.read_bytes().replace(b"Ascend910B1", b"Ascend910B9"))


def missing_weight(bundle: Path) -> None:
    next((bundle / "engines" / "ascend-910B1" / "weight").iterdir()).unlink()


def other_graph(bundle: Path) -> None:
    def alter(model: object) -> None:
        model.doc_string = "x"  # type: ignore[attr-defined]

    graph = altered_graph(bundle / "portable.onnx", bundle / "portable.onnx", alter)
    manifest = json.loads((bundle / "manifest.json").read_text())
    for record in manifest["files"]:
        if record["path"] == "portable.onnx":
            record["size"] = graph.stat().st_size
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("change", [another_version, another_plan, damaged_om, missing_weight, other_graph])
def test_a_change_builds_again(
    planned_bundle: Path, atc_calls: Path, ascend: Command, change: Callable[[Path], None]
) -> None:
    assert ascend(planned_bundle, *SOC)[0] == 0
    change(planned_bundle)
    code, output, _ = ascend(planned_bundle, *SOC)
    assert code == 0
    assert "up to date" not in output
    assert len(runs(atc_calls)) == 2
    assert "up to date" in ascend(planned_bundle, *SOC)[1]
    assert ascend(planned_bundle, *SOC, "--precision", "bf16")[0] == 0
    assert len(runs(atc_calls)) == 3
    assert files_of(planned_bundle / "engines")[0] == "ascend-910B1"


def test_a_toolkit_without_a_version(
    planned_bundle: Path, atc_calls: Path, ascend: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_toolkit(tmp_path / "toolkit", None)
    monkeypatch.setenv("STAND_IN_ATC_SUFFIX", "_linux_aarch64")
    assert ascend(planned_bundle, *SOC)[0] == 0
    engine = ASCEND_ENGINES.read(planned_bundle / "engines" / "ascend-910B1").engine
    assert engine.cann_version is None
    assert {each.model for each in engine.buckets} == {"buckets_linux_aarch64.om"}


def test_one_bucket_is_an_om_of_fixed_shape(planned_bundle: Path, atc_calls: Path, ascend: Command) -> None:
    change_plan(planned_bundle, buckets=[bucket(1, 4, 64, 64)])
    assert ascend(planned_bundle, *SOC)[0] == 0
    engine = ASCEND_ENGINES.read(planned_bundle / "engines" / "ascend-910B1").engine
    assert (engine.dynamic, engine.buckets[0].dims, engine.buckets[0].model) == (False, [], "bucket-0.om")
    assert not [argument for argument in runs(atc_calls)[0] if argument.startswith("--dynamic_dims")]


def test_int8_is_an_om_for_each_bucket(planned_bundle: Path, atc_calls: Path, ascend: Command, tmp_path: Path) -> None:
    folder = tmp_path / "amct"
    folder.mkdir()
    shutil.copy(planned_bundle / "model.onnx.data", folder)
    graph = altered_graph(planned_bundle / "portable.onnx", folder / "deploy.onnx", quantized)
    code, output, errors = ascend(planned_bundle, *SOC, "--int8", "--int8-graph", graph)
    assert code == 0, errors
    assert "3 buckets, 3 OM" in output
    engine = ASCEND_ENGINES.read(planned_bundle / "engines" / "ascend-910B1").engine
    assert (engine.int8, engine.dynamic, engine.precision) == (True, False, "fp16")
    assert [each.model for each in engine.buckets] == ["bucket-0.om", "bucket-1.om", "bucket-2.om"]
    for each in engine.buckets:
        dims = iter(each.dims)
        filled = [[next(dims) if dim == -1 else dim for dim in value.dims] for value in engine.inputs]
        om = read_om(planned_bundle / "engines" / "ascend-910B1" / each.model)
        assert [value.dims for value in om.inputs] == filled
        assert om.buckets == []


def test_a_dry_run_and_the_files_its_commands_write(
    planned_bundle: Path, atc_calls: Path, ascend: Command, tmp_path: Path
) -> None:
    elsewhere, target = tmp_path / "elsewhere", tmp_path / "build"
    shutil.copytree(planned_bundle, elsewhere)
    assert ascend(planned_bundle, *SOC)[0] == 0
    built = runs(atc_calls)
    code, output, _ = ascend(elsewhere, *SOC, "--dry-run", "-o", target)
    assert code == 0
    assert output.startswith(f"{target}: 1 commands for 3 buckets")
    assert runs(atc_calls) == built  # a dry run does not run ATC
    assert json.loads((target / "commands.json").read_text())["commands"] == built
    assert files_of(target) == [
        *("README.txt", "cache", "commands.json", "engine", "model", "model/model.onnx.data"),
        *("model/portable.onnx", "run.py", "shape_buckets.json"),
    ]
    for path in (target / "model").iterdir():
        assert path.read_bytes() == (elsewhere / path.name).read_bytes()
        assert path.stat().st_nlink == 1  # ONNX rejects external data with several hard links
    code, _, errors = ascend(elsewhere, *SOC, "--built", target)
    assert code == 2
    assert "has no buckets.om" in errors
    subprocess.run([sys.executable, target / "run.py"], cwd=tmp_path, check=True, capture_output=True)
    assert runs(atc_calls)[1:] == built
    code, output, _ = ascend(elsewhere, *SOC, "--built", target)
    assert code == 0
    there = ASCEND_ENGINES.read(elsewhere / "engines" / "ascend-910B1").engine
    here = ASCEND_ENGINES.read(planned_bundle / "engines" / "ascend-910B1").engine
    assert (there.buckets, there.inputs, there.outputs) == (here.buckets, here.inputs, here.outputs)
    assert {record.sha256 for record in there.files} <= {record.sha256 for record in here.files}
    code, _, errors = ascend(elsewhere, *SOC, "--precision", "fp16", "--built", target)
    assert code == 2
    assert "other commands" in errors
    (target / "model" / "portable.onnx").write_bytes(b"other")
    code, _, errors = ascend(elsewhere, *SOC, "--built", target)
    assert code == 2
    assert "differs from the current input" in errors
    assert ascend(elsewhere, *SOC, "--dry-run", "-o", target)[0] == 0  # replaces the earlier folder
    assert not list((target / "engine").iterdir())


def test_a_failing_command_of_a_build_folder(
    planned_bundle: Path, atc_calls: Path, ascend: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ascend(planned_bundle, *SOC, "--dry-run")[0] == 0
    monkeypatch.setenv("STAND_IN_ATC_FAIL", "E40021: broken")
    done = subprocess.run(
        [sys.executable, "ascend-910B1-build/run.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "exit code 255" in done.stderr


def test_a_build_folder_without_atc(
    planned_bundle: Path, ascend: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ascend(planned_bundle, *SOC, "--dry-run", "-o", tmp_path / "build")[0] == 0
    monkeypatch.setenv("PATH", str(tmp_path))
    done = subprocess.run([sys.executable, tmp_path / "build" / "run.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("atc is not on PATH")


def test_a_terminal_shows_a_clock(planned_bundle: Path, atc_calls: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "STAND_IN_ATC_SLEEP": "2", "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-m", "lopa.cli.main", "ascend", planned_bundle, *SOC],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # reading a pseudo-terminal fails when its other side is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert process.wait() == 0
    assert re.search(rb"atc compiles buckets for Ascend910B1[^\n]*0:00:0[1-9]", shown)


def test_a_dry_run_for_int8_names_the_required_graph(planned_bundle: Path, ascend: Command, tmp_path: Path) -> None:
    target = tmp_path / "build"
    assert ascend(planned_bundle, *SOC, "--int8", "--dry-run", "-o", target)[0] == 0
    commands = json.loads((target / "commands.json").read_text())["commands"]
    assert len(commands) == 3
    assert all("--model=model/portable_int8.onnx" in each for each in commands)
    assert "Quantize model/portable.onnx with AMCT" in (target / "README.txt").read_text()


@pytest.mark.parametrize("failure", atc_contract().failures, ids=lambda failure: "-".join(failure.codes) or "opp")
def test_a_known_failure_is_explained(
    planned_bundle: Path, atc_calls: Path, ascend: Command, monkeypatch: pytest.MonkeyPatch, failure: object
) -> None:
    code_line = failure.codes[0] if failure.codes else "opp version mismatch"  # type: ignore[attr-defined]
    monkeypatch.setenv("STAND_IN_ATC_FAIL", f"{code_line}: words")
    code, output, errors = ascend(planned_bundle, *SOC)
    assert (code, output) == (failure.exit_code, "")  # type: ignore[attr-defined]
    assert "atc ended with exit code 255" in errors
    assert failure.cause in errors  # type: ignore[attr-defined]
    assert failure.remedy in errors  # type: ignore[attr-defined]
    failed = planned_bundle / "engines" / "failed-ascend-910B1"
    assert f"{failed}/atc.log" in errors
    assert "words" in (failed / "atc.log").read_text()
    (plog,) = (failed / "log" / "debug" / "plog").iterdir()
    assert "words" in plog.read_text()
    assert [path.name for path in (planned_bundle / "engines").iterdir()] == [failed.name]


def test_unknown_failures_of_atc(
    planned_bundle: Path, atc_calls: Path, ascend: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An existing engine stays, and the next successful build removes the remains of the failed one."""
    assert ascend(planned_bundle, *SOC)[0] == 0
    folder = planned_bundle / "engines" / "ascend-910B1"
    before = files_of(folder)
    monkeypatch.setenv("STAND_IN_ATC_FAIL", "E19999: Inner Error!")
    monkeypatch.setenv("ASCEND_PROCESS_LOG_PATH", str(tmp_path / "plogs"))
    code, _, errors = ascend(planned_bundle, *SOC, "--precision", "fp16")
    assert code == 1
    assert "exit code 255 and E19999" in errors
    assert "E19999: Inner Error!" in errors
    assert str(tmp_path / "plogs") in errors
    assert files_of(folder) == before
    assert ASCEND_ENGINES.read(folder).engine.precision == "origin"
    monkeypatch.delenv("STAND_IN_ATC_FAIL")
    monkeypatch.setenv("STAND_IN_ATC_NO_OM", "1")
    code, _, errors = ascend(planned_bundle, *SOC, "--precision", "fp16")
    assert code == 1
    assert "exit code 0 but wrote no buckets.om" in errors
    monkeypatch.delenv("STAND_IN_ATC_NO_OM")
    assert ascend(planned_bundle, *SOC, "--precision", "fp16")[0] == 0
    assert [path.name for path in (planned_bundle / "engines").iterdir()] == ["ascend-910B1"]


def test_atc_missing_or_not_executable(
    planned_bundle: Path, ascend: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, _, errors = ascend(planned_bundle, *SOC)
    assert code == 3
    assert "atc is not on PATH" in errors
    assert "--dry-run" in errors
    (tmp_path / "atc").write_text("no program")
    (tmp_path / "atc").chmod(0o755)
    code, _, errors = ascend(planned_bundle, *SOC)
    assert code == 3
    assert "cannot be run" in errors
    assert not (planned_bundle / "engines").exists()


def test_ctrl_c_ends_atc_and_leaves_nothing(planned_bundle: Path, atc_calls: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lopa.cli.main", "ascend", planned_bundle, *SOC],
        env={**os.environ, "STAND_IN_ATC_SLEEP": "60"},
        stderr=subprocess.PIPE,
        text=True,
    )
    children: list[Path] = []
    while not children and process.poll() is None:
        time.sleep(0.05)
        children = [path for path in planned_bundle.glob("engines/.*/work/children.txt") if path.read_text()]
    numbers = [int(number) for number in children[0].read_text().split()]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert all(ends(number) for number in numbers)
    assert not (planned_bundle / "engines").exists()


def test_a_killed_build_is_cleared_by_the_next(planned_bundle: Path, atc_calls: Path, ascend: Command) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lopa.cli.main", "ascend", planned_bundle, *SOC],
        env={**os.environ, "STAND_IN_ATC_SLEEP": "60"},
        stderr=subprocess.DEVNULL,
    )
    children: list[Path] = []
    while not children and process.poll() is None:
        time.sleep(0.05)
        children = [path for path in planned_bundle.glob("engines/.*/work/children.txt") if path.read_text()]
    numbers = [int(number) for number in children[0].read_text().split()]
    process.kill()
    process.wait()
    for number in numbers:  # a killed process cannot end its children
        os.kill(number, signal.SIGKILL)
    assert not (planned_bundle / "engines" / "ascend-910B1").exists()
    assert ascend(planned_bundle, *SOC)[0] == 0
    assert [path.name for path in (planned_bundle / "engines").iterdir()] == ["ascend-910B1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--soc-version", "Ascend910C"], "perhaps Ascend910"),
        (["--soc-version", "Ascend310P3", "--precision", "bf16"], "which has no bfloat16"),
        ([*SOC, "--int8"], "AMCT"),
        ([*SOC, "--int8", "--precision", "origin", "--dry-run"], "int8 with precision origin"),
        ([*SOC, "--int8-graph", "x.onnx"], "needs --int8"),
        ([*SOC, "--int8", "--int8-graph", "no/such.onnx"], "no/such.onnx"),
        ([*SOC, "--buckets", "no/such.json"], "lopa-export plan"),
        ([*SOC, "--precision", "fp32"], "--precision"),
        ([*SOC, "-o", "x"], "--dry-run"),
        ([*SOC, "--dry-run", "--built", "x"], "choose one"),
        ([*SOC, "--built", "no/such"], "no/such"),
        ([], "--soc-version"),
    ],
)
def test_bad_input(planned_bundle: Path, atc_calls: Path, ascend: Command, arguments: list[str], message: str) -> None:
    code, output, errors = ascend(planned_bundle, *arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert runs(atc_calls) == []
    assert not (planned_bundle / "engines").exists()


def test_more_buckets_than_atc_takes(planned_bundle: Path, atc_calls: Path, ascend: Command) -> None:
    change_plan(
        planned_bundle, buckets=[bucket(1, 1 + number // 60, 64, 64 * (1 + number % 60)) for number in range(101)]
    )
    code, _, errors = ascend(planned_bundle, *SOC)
    assert code == 2
    assert "101 shape buckets for Ascend910B1, whose limit is 100 (E10036)" in errors
    assert "--buckets N" in errors
    assert ascend(planned_bundle, "--soc-version", "Ascend950PR_9599")[0] == 0


def test_a_bundle_without_a_plan_or_a_portable_graph(
    planned_bundle: Path, tiny_bundle: Path, atc_calls: Path, ascend: Command
) -> None:
    plan = planned_bundle / BUCKETS_NAME
    code, _, errors = ascend(tiny_bundle, *SOC, "--buckets", plan)
    assert code == 2
    assert "--dialect portable" in errors or "made for weights" in errors
    plan.unlink()
    code, _, errors = ascend(planned_bundle, *SOC)
    assert code == 2
    assert f"lopa-export plan {planned_bundle}" in errors


def test_a_node_that_atc_does_not_know_is_named(planned_bundle: Path, atc_calls: Path, ascend: Command) -> None:
    def alter(model: object) -> None:
        node = next(node for node in model.graph.node if node.op_type == "Sigmoid")  # type: ignore[attr-defined]
        node.op_type = "Gelu"

    other_graph(planned_bundle)
    altered_graph(planned_bundle / "portable.onnx", planned_bundle / "portable.onnx", alter)
    size = (planned_bundle / "portable.onnx").stat().st_size
    manifest = json.loads((planned_bundle / "manifest.json").read_text())
    manifest["files"] = [
        {**record, "size": size} if record["path"] == "portable.onnx" else record for record in manifest["files"]
    ]
    (planned_bundle / "manifest.json").write_text(json.dumps(manifest))
    assert Bundle.open(planned_bundle)
    code, _, errors = ascend(planned_bundle, *SOC)
    assert code == 2
    assert "Gelu layers.0.mlp/Sigmoid (opset 17" in errors
    assert "(E16002)" in errors
    assert runs(atc_calls) == []
