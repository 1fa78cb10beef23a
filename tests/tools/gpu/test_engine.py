"""The stage of the GPU report that builds with TensorRT: which commands, and what happens when they do not end well."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tools.gpu.test_report import settings_in
from tools.gpu import stages
from tools.gpu.engine import engine_of_bundle
from tools.gpu.run import GpuRun

from lopa.runtime.errors import CheckFailedError

COMMAND = """
import json, pathlib, sys, time
log = pathlib.Path(sys.argv[1])
log.write_text(json.dumps([*json.loads(log.read_text() or "[]"), sys.argv[2:]]))
if sys.argv[2] == {fails!r}:
    sys.exit("error: a stand-in command that fails")
time.sleep({sleeps})
"""


@pytest.fixture
def run(tmp_path: Path) -> GpuRun:
    """Of a GPU, as far as this stage looks at it."""
    settings = settings_in(tmp_path)
    for folder in (settings.work, settings.out):
        folder.mkdir()
    begun = GpuRun.begun(settings, lambda _: None)
    begun.settings = replace(begun.settings, device="cuda:0")
    return begun


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, fails: str = "", sleeps: float = 0.0) -> Path:
    """In the place of lopa-export; the file that its arguments go to."""
    log, script = folder / "log.json", folder / "command.py"
    log.write_text("")
    script.write_text(COMMAND.format(fails=fails, sleeps=sleeps))
    monkeypatch.setattr("tools.gpu.engine.COMMAND", (sys.executable, str(script), str(log)))
    monkeypatch.setattr("tools.gpu.stages.has_tensorrt", lambda: True)
    return log


def test_it_is_built_and_verified(run: GpuRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = stand_in(monkeypatch, tmp_path)
    stages._engine(run, "float32")
    bundle = str(run.settings.bundle("float32"))
    assert json.loads(log.read_text()) == [["tensorrt", bundle], ["verify", bundle, "--device", "tensorrt:0"]]
    assert [(each.stage, each.finished, each.note) for each in run.results.stages] == [
        ("engine", True, "TensorRT's engine is built and verified")
    ]


@pytest.mark.parametrize("fails", ["tensorrt", "verify"])
def test_a_command_that_fails_is_in_the_report(
    fails: str, run: GpuRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = stand_in(monkeypatch, tmp_path, fails=fails)
    stages._engine(run, "float32")
    assert json.loads(log.read_text())[-1][0] == fails
    (failure,) = run.results.failures
    assert (failure.side, failure.stage) == ("lopa tensorrt:0", "engine")
    assert f"lopa-export {fails} ended with 1: error: a stand-in command that fails" in failure.reason
    with pytest.raises(CheckFailedError, match="stand-in command that fails"):
        engine_of_bundle(tmp_path, "0", 60)


def test_a_build_that_takes_too_long_is_given_up(run: GpuRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, tmp_path, sleeps=60)
    with pytest.raises(subprocess.TimeoutExpired):
        engine_of_bundle(tmp_path, "0", 0.5)
    monkeypatch.setattr("tools.gpu.stages._KEPT_SECONDS", run.left - 1.0)
    stages._engine(run, "float32")
    (stage,) = run.results.stages
    assert not stage.finished
    assert "raise --limit-seconds" in stage.note


def test_nothing_is_built_without_time_or_tensorrt(
    run: GpuRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = stand_in(monkeypatch, tmp_path)
    monkeypatch.setattr("tools.gpu.stages._KEPT_SECONDS", 1e9)
    stages._engine(run, "float32")
    assert run.results.stages[-1].note == "no time to build with TensorRT"
    monkeypatch.setattr("tools.gpu.stages.has_tensorrt", lambda: False)
    stages._engine(run, "float32")
    assert run.results.stages[-1].note == "no TensorRT here"
    assert log.read_text() == ""
