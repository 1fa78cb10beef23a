"""Replay of the recordings in another folder counts agreements and reports differences."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner
from tests.conformance.family_traces import FAMILIES
from tools.reports.conformance import main


def test_a_changed_decision_is_reported(family_bundle: Callable[..., Path], tmp_path: Path) -> None:
    with gzip.open(FAMILIES / "sdar" / "traces" / "b4_sequential.jsonl.gz", "rt") as lines:
        header, first, second = (json.loads(next(lines)) for _ in range(3))
    second["steps"][1]["fills"][0][1] += 1
    (tmp_path / "sdar" / "traces").mkdir(parents=True)
    with gzip.open(tmp_path / "sdar" / "traces" / "mine.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in (header, first, second))
    bundle = family_bundle("sdar")
    done = CliRunner().invoke(main, [str(bundle.parent), "cpu", "--traces", str(tmp_path), "--dialect", "portable"])
    assert done.exit_code == 1
    steps = len(first["steps"]) + 2
    assert f"| sdar mine | 1 | 2 | {steps} | 0 | 0 | 0 | 1 | 0 |" in done.stdout
    assert f"sdar mine on 1: prompt {second['i']} step 1: fills [(" in done.stderr
    empty = CliRunner().invoke(main, [str(bundle.parent), "cpu", "--traces", str(tmp_path / "sdar")])
    assert empty.exit_code == 2
    assert "has no FAMILY/traces" in empty.stderr
