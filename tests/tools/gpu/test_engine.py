"""TensorRT stage of the GPU report: its commands, and their failures and timeouts."""

import json
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
    """Return a run that seems to be on a GPU."""
    settings = settings_in(tmp_path)
    for folder in (settings.work, settings.out):
        folder.mkdir()
    started = GpuRun.start(settings, lambda _: None)
    started.settings = replace(started.settings, device="cuda:0")
    return started


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, fails: str = "", sleeps: float = 0.0) -> Path:
    """Replace lopa-export by a stand-in, and return the file that receives its arguments."""
    log, script = folder / "log.json", folder / "command.py"
    log.write_text("")
    script.write_text(COMMAND.format(fails=fails, sleeps=sleeps))
    monkeypatch.setattr("tools.gpu.engine.COMMAND", (sys.executable, str(script), str(log)))
    monkeypatch.setattr("tools.gpu.stages.has_tensorrt", lambda: True)
    return log


def test_the_engine_is_built_and_verified(run: GpuRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = stand_in(monkeypatch, tmp_path)
    stages._engine(run, "float32")
    bundle = str(run.settings.bundle("float32"))
    assert json.loads(log.read_text()) == [["tensorrt", bundle], ["verify", bundle, "--device", "tensorrt:0"]]
    assert [(each.stage, each.finished, each.note) for each in run.results.stages] == [
        ("engine", True, "TensorRT engine built and verified")
    ]


@pytest.mark.parametrize("fails", ["tensorrt", "verify"])
def test_failing_commands_are_reported(
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
