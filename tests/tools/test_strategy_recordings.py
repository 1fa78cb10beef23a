"""Replay of recorded decisions: any file or folder, differences and unknown settings."""

import gzip
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.conformance.plain.strategy_recorder import DrawnModel, freedave_trace
from tools.strategy_recordings import main


def recording_file(path: Path, header: dict[str, Any], trace: dict[str, Any]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, trace))
    return path


def test_recordings_of_another_folder(tmp_path: Path) -> None:
    header, trace = freedave_trace(DrawnModel(1, 12, steady=3.0), 12, draft_steps=2, threshold=None, rule="exact")
    mine = recording_file(tmp_path / "mine.jsonl.gz", header, trace)
    good = CliRunner().invoke(main, [str(tmp_path)])
    assert good.exit_code == 0
    assert "| mine " in good.stdout
    number = next(number for number, step in enumerate(trace["steps"]) if step["op"] == "verify")
    other = [*trace["steps"]]
    other[number] = other[number] | {"accepted": other[number]["accepted"] + 1}
    recording_file(mine, header, {"steps": other[: number + 1]})
    bad = CliRunner().invoke(main, [str(mine)])
    assert bad.exit_code == 1
    recording_file(mine, header | {"params": header["params"] | {"alg_temp": 1.0}}, trace)
    unknown = CliRunner().invoke(main, [str(mine)])
    assert unknown.exit_code == 2
    assert f"{mine}: alg_temp 1.0" in unknown.stderr
    (tmp_path / "empty").mkdir()
    empty = CliRunner().invoke(main, [str(tmp_path / "empty")])
    assert (empty.exit_code, empty.stderr) == (2, "no recordings (*.jsonl.gz) found\n")
