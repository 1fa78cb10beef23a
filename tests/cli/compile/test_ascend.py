"""lopa-export ascend with a stand-in for ATC. The real ATC has not been run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import outcome
from tests.export.ascend.test_build import ends
from tests.runtime.ascend.stand_in_om import read_om
from tests.runtime.ascend.stand_in_toolkit import VERSION
from tests.runtime.bundle.test_buckets import bucket

from lopa.export.ascend.contract import atc_contract
from lopa.runtime.ascend.ascend_manifest import ASCEND_ENGINES
from lopa.runtime.bundle.buckets import BUCKETS_NAME, BucketPlan

SOC = ("--soc-version", "Ascend910B1")
ascend = partial(outcome, "ascend")


def runs(calls: Path) -> list[list[str]]:
    return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []


def change_plan(bundle: Path, **changes: object) -> None:
    path = bundle / BUCKETS_NAME
    plan = msgspec.json.decode(path.read_bytes(), type=BucketPlan)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, **changes)))


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_build_and_what_builds_again(planned_bundle: Path, atc_calls: Path) -> None:
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
    shown = outcome("inspect", planned_bundle)[1]
    assert "ascend-910B1  for Ascend910B1, 3 buckets in 1 OM, precision origin, matches the weights" in shown
    before = (folder / "engine.json").read_bytes()
    code, output, errors = ascend(planned_bundle, *SOC)
    assert (code, errors) == (0, "")
    assert "up to date, nothing was run" in output
    assert (folder / "engine.json").read_bytes() == before
    om = folder / "buckets.om"
    om.write_bytes(om.read_bytes().replace(b"Ascend910B1", b"Ascend910B9"))
    for changed in (False, True):
        if changed:
            change_plan(planned_bundle, buckets=[bucket(1, 4, 64, 64), bucket(1, 1, 96, 128)])
        code, output, _ = ascend(planned_bundle, *SOC)
        assert code == 0
        assert "up to date" not in output
    assert len(runs(atc_calls)) == 3


def test_a_dry_run_and_the_files_its_commands_write(planned_bundle: Path, atc_calls: Path, tmp_path: Path) -> None:
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
    subprocess.run([sys.executable, target / "run.py"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
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


@pytest.mark.parametrize("failure", atc_contract().failures[::9], ids=lambda failure: "-".join(failure.codes) or "opp")
def test_a_known_failure_is_explained(
    planned_bundle: Path, atc_calls: Path, monkeypatch: pytest.MonkeyPatch, failure: object
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
    planned_bundle: Path, atc_calls: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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


def test_atc_missing_or_not_executable(planned_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def started_build(bundle: Path) -> tuple["subprocess.Popen[str]", list[int]]:
    """Return a process with a build that runs, and the numbers of atc's processes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lopa.cli.main", "ascend", bundle, *SOC],
        env={**os.environ, "STAND_IN_ATC_SLEEP": "60"},
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 100
    while time.monotonic() < end and process.poll() is None:
        for path in bundle.glob("engines/.*/work/children.txt"):
            if numbers := path.read_text().split():
                return process, [int(number) for number in numbers]
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate(timeout=60)[1])


def test_ctrl_c_ends_atc_and_leaves_nothing(planned_bundle: Path, atc_calls: Path) -> None:
    process, numbers = started_build(planned_bundle)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"
    assert all(ends(number) for number in numbers)
    assert not (planned_bundle / "engines").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--soc-version", "Ascend910C"], "perhaps Ascend910"),
        (["--soc-version", "Ascend310P3", "--precision", "bf16"], "which has no bfloat16"),
        ([*SOC, "--int8"], "AMCT"),
        ([*SOC, "--int8-graph", "x.onnx"], "needs --int8"),
        ([*SOC, "--buckets", "no/such.json"], "lopa-export plan"),
        ([*SOC, "-o", "x"], "--dry-run"),
        ([*SOC, "--dry-run", "--built", "x"], "choose one"),
    ],
)
def test_bad_input(planned_bundle: Path, atc_calls: Path, arguments: list[str], message: str) -> None:
    code, output, errors = ascend(planned_bundle, *arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert runs(atc_calls) == []
    assert not (planned_bundle / "engines").exists()
