"""tools/soak.py as it is run, short; the full length is for people who change the engine (docs/engine.md)."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.python_path import python_path

ROOT = Path(__file__).resolve().parents[2]


def run_tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"tools.{name}", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_short_soak_loses_nothing_and_mixes_nothing_up(tiny_bundle: Path) -> None:
    done = run_tool("soak", tiny_bundle, "--requests", 240, "--distinct", 20, "--slots", 4, "--seed", 8)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    found = report["outcomes"]
    assert sum(found.values()) == 240
    assert found["the same as alone"] > 100
    assert found["failed as injected"] > 5
    assert found["refused"] > 0
    assert not {"lost", "different", "wrong error"} & set(found)
    assert (report["caches_left"], report["threads_left"]) == (0, 0)
    copies = found.get("copies, one cancelled", 0) + found.get("copies, all whole", 0)
    assert copies > 5
    assert report["ends_observed"] == 240 - found["refused"] + 2 * copies
    assert report["drained"]


def test_devices_that_fail_change_no_answer(tiny_bundle: Path) -> None:
    done = run_tool("soak", tiny_bundle, "--requests", 80, "--distinct", 10, "--seed", 2, "--failing", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["devices_failed"] == 2
    assert report["outcomes"]["the same as alone"] > 40
    assert done.stderr.count("was lost, the others go on without it") == 2


def test_the_engine_report_counts_what_prompts_used_again_save(tiny_bundle: Path) -> None:
    done = run_tool("reports.engine", tiny_bundle, "--limit", 2, "--rounds", 1, "--branches", 2)
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    rows = {line[0]: int(line[-1]) for line in cells if line and line[-1].isdigit()}
    assert rows["used again"] < rows["computed every time"]
    assert rows["8, 0%"] == rows["1, 0%"] <= rows["8, any"]


def test_the_admission_report_has_a_line_for_every_limit(tiny_bundle: Path) -> None:
    done = run_tool("reports.admission", tiny_bundle, "--prompts", 3, "--rows", 40, "--rounds", 1, "--answer", 2)
    assert done.returncode == 0, done.stderr
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
    rows = {line[0]: [int(cell) for cell in line[1:]] for line in cells if line and line[-1].isdigit()}
    assert list(rows) == ["without a limit", "4096", "1024", "256"]
    assert all(0 < first <= last for _, _, first, last in rows.values())
