"""Commands of docs/how-to/engines.md: run in one folder, or with a reason."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.export.replay.replayed import POLYGRAPHY

_TEXT = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "engines.md").read_text(encoding="utf-8")
PAGE = _TEXT.partition("\n## Debug an engine with Polygraphy\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^ *((?:lopa-export|polygraphy|python|\w+=1 polygraphy) .+)$", PAGE, re.MULTILINE)
REASONS = ("needs a GPU", "needs the wheels", "takes a minute")
RUN = [command for command in COMMANDS if "  # " not in command]
NOT_RUN = [command for command in COMMANDS if "  # " in command]


def test_every_command_runs_or_has_a_reason() -> None:
    assert (len(RUN), len(NOT_RUN)) == (9, 6)
    assert {command.partition("  # ")[2] for command in NOT_RUN} == set(REASONS)


@pytest.mark.slow  # nine processes
def test_the_commands_for_the_cpu_work_as_documented(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "BUNDLE").symlink_to(tiny_bundle)
    programs = tmp_path / "bin"
    programs.mkdir()
    starts = {
        "python": (sys.executable,),
        "polygraphy": POLYGRAPHY,
        "lopa-export": (sys.executable, "-m", "lopa.cli.main"),
    }
    for name, start in starts.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(start)} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    outputs = {}
    for command in RUN:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        outputs[command] = done.stdout
    compared = [output for command, output in outputs.items() if "--load-outputs CASES/outputs.json" in command]
    assert len(compared) == 2
    assert all("Passed: 18/18 iterations" in output for output in compared)
    for name in ("CASES/trt-shapes.txt", "one.json", "golden.json", "part.onnx", "folded.onnx"):
        assert (tmp_path / name).stat().st_size > 0
    rows = re.findall(r"^\| (`.+?`) \|", PAGE, re.MULTILINE)
    listed = {name for names in rows for name in re.findall(r"`([\w-]+\.\w+)`", names)}
    assert {each.name for each in (tmp_path / "CASES").iterdir()} - {"__pycache__"} == listed
