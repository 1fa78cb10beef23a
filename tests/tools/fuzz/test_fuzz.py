"""A short run of the fuzzer, and its classification of cases that end badly."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.python_path import python_path
from tests.tools.fuzz.ending_cases import ENDS

pytest.importorskip("torch")

from tools.fuzz.run import KINDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
CASES = 4 * len(KINDS)
"""Four cases of every kind."""


def run_fuzzer(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer in a process without threads, since it forks."""
    return subprocess.run(
        [sys.executable, "-m", "tools.fuzz", *map(str, arguments)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_a_short_run_finds_no_bad_case(tiny_staged: Path, tiny_portable: Path) -> None:
    found = run_fuzzer(
        "--cases", CASES, "--seed", 100, "--jobs", 1, "--bundle", tiny_staged, "--portable", tiny_portable
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "No bad cases" in found.stdout
    for kind in KINDS:
        assert re.search(rf"\| {kind} +\| +{CASES // len(KINDS)} \|", found.stdout)


def test_classes_of_endings() -> None:
    """All classes are distinguished, and no process is lost."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tools.fuzz.ending_cases"],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    for name in ENDS:
        found = name.partition("-")[0]
        bad = found not in ("same", "fine", "typed")
        assert f"{name} 7 {found} {bad} words\n" in done.stdout, done.stdout + done.stderr
