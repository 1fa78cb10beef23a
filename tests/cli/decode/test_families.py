"""Bundles of other families on the command line: a recording of each reproduced, plans, benchmarks, inspect."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export


@pytest.fixture
def bundle(family_bundle: Callable[..., Path], tmp_path: Path) -> Path:
    """Return a private copy of the bundle, since the tests write a plan into it."""
    return Path(shutil.copytree(family_bundle("sdar"), tmp_path / "sdar"))


def test_a_plan_a_timeline_and_an_inspection(bundle: Path, tmp_path: Path) -> None:
    trace, timeline = tmp_path / "trace.jsonl", tmp_path / "timeline.json"
    options: list[Any] = ["--step-log", trace, "--timeline", timeline, "--threads", 1, "--max-new-tokens", 24]
    done = lopa_export("generate", bundle, "Question: 2 + 3?", *options)
    assert done.returncode == 0, done.stderr
    assert "1 branch: threshold does not look ahead" in done.stderr
    assert len(json.loads(timeline.read_text())["traceEvents"]) > 3
    planned = lopa_export("plan", bundle, "--step-log", trace, "--buckets", 2)
    assert planned.returncode == 0, planned.stderr
    assert (bundle / "shape_buckets.json").is_file()
    shown = lopa_export("inspect", bundle)
    assert shown.returncode == 0
    little = "blocks of 4, one at a time, leave at most 3 positions for lookahead branches"
    assert little in shown.stdout
    looked = lopa_export("generate", bundle, "Question: 2 + 3?", "--strategy", "lopa", "--max-new-tokens", 8)
    assert looked.returncode == 0, looked.stderr
    assert little in looked.stderr
