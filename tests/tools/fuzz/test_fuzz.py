"""A short run of the fuzzer, and its classification of cases that end badly."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.python_path import python_path
from tests.tools.fuzz.ending_cases import ENDS

pytest.importorskip("torch")

from tools.fuzz.case import Case, CaseOutcome, Material
from tools.fuzz.mutations import changed_bytes, changed_json
from tools.fuzz.run import KINDS, table_of_bad_cases, table_of_outcomes

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


def test_mutations_are_deterministic() -> None:
    tree = {"a": [1, 2, {"b": "text"}], "c": 5.5}
    for seed in range(50):
        one, other = (changed_json(random.Random(seed), tree) for _ in range(2))
        assert repr(one) == repr(other)
        assert changed_bytes(random.Random(seed), b"some 123 bytes") == changed_bytes(
            random.Random(seed), b"some 123 bytes"
        )


def test_cases_of_every_kind_are_deterministic(tiny_staged: Path, tiny_portable: Path, tmp_path: Path) -> None:
    from lopa.tiny import ADAPTER, CHECKPOINT

    material = Material(tiny_staged, tiny_portable, CHECKPOINT, ADAPTER)
    material.answers = {way: [1] for way in ("cpu", "numpy", "portable", "staged")}
    for kind, make in KINDS.items():
        words = []
        for again in range(2):
            folder = tmp_path / f"{kind}{again}"
            folder.mkdir()
            case = make(random.Random(f"{kind} 3"), folder, material)
            assert isinstance(case, Case)
            words.append(case.mutation.replace(str(folder), ""))
        if kind != "prompt":  # its prompts include an object(), whose repr has an address
            assert words[0] == words[1]


def test_the_table_groups_bad_cases() -> None:
    found = [
        CaseOutcome("graph", 1, "typed", "a"),
        CaseOutcome("graph", 2, "differ", "b", may_differ=True),
        CaseOutcome("links", 3, "foreign", "c", place="runtime/bundle/bundle.py:84", error="RuntimeError: loop"),
        CaseOutcome("links", 5, "foreign", "d", place="runtime/bundle/bundle.py:84", error="RuntimeError: another"),
    ]
    rows = table_of_outcomes(found).rows
    assert ("graph", "2", "1", "0", "0", "1", "0", "0", "0", "0") in rows
    assert rows[-1] == ("all", "4", "1", "0", "0", "1", "2", "0", "0", "0")
    bad = table_of_bad_cases([each for each in found if each.bad])
    assert bad.rows == (("foreign", "2", "RuntimeError", "runtime/bundle/bundle.py:84", "links 3: c"),)
    assert table_of_bad_cases([]).title == "No bad cases"


def test_a_case_is_replayed_and_its_files_are_kept(tiny_staged: Path, tiny_portable: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    done = run_fuzzer(
        *("--only", "buckets 4", "--keep", tmp_path / "kept"), "--bundle", tiny_staged, "--portable", tiny_portable
    )
    assert '"kind": "buckets"' in done.stdout
    assert (tmp_path / "kept" / "buckets-4" / "shape_buckets.json").is_file()
