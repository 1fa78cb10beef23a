"""tools/reports/forward.py as it is run: the sides, the files, and what it says to wrong arguments."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.python_path import python_path
from tools.reports.forward import main

from lopa.runtime.errors import BadInputError
from lopa.tiny import ADAPTER, CHECKPOINT

ROOT = Path(__file__).resolve().parents[3]


def forward_report(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.reports.forward", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_every_side_at_every_shape(tiny_bundle: Path, tmp_path: Path) -> None:
    done = forward_report(
        *(tiny_bundle, "--checkpoint", CHECKPOINT, "--lora", ADAPTER, "--rounds", 1, "--prefix", 70),
        *("--shape", "1x8", "--shape", "3x16", "--wanted", 5, "--wanted", 99, "--output", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "forward.json").read_bytes())
    sides = [f"torch {dtype}, {how}" for dtype in ("float32", "bfloat16") for how in ("in a batch", "one by one")]
    shapes = [(1, 8, 70, 5), (1, 8, 70, 8), (3, 16, 70, 5), (3, 16, 70, 16)]
    assert [(each["side"], tuple(each["shape"].values())) for each in report["results"]] == [
        (side, shape) for shape in shapes for side in [*sides, f"lopa {tiny_bundle.name}"]
    ]
    for each in report["results"]:
        assert each["logprob_error"] < (0.2 if "bfloat16" in each["side"] else 1e-5), each
    assert (tmp_path / "forward.md").read_text() in done.stdout


@pytest.mark.parametrize("shape", ["64", "4x", "axb", "1x2x3", "0x64", "4x-1"])
def test_a_shape_that_is_none(tiny_bundle: Path, shape: str) -> None:
    arguments = [str(tiny_bundle), "--checkpoint", str(CHECKPOINT), "--shape", shape]
    with pytest.raises(BadInputError, match=re.escape(repr(shape))):
        CliRunner().invoke(main, arguments, catch_exceptions=False)


def test_no_bundle(tmp_path: Path) -> None:
    done = forward_report(tmp_path, "--checkpoint", CHECKPOINT)
    assert done.returncode == 2
    assert "manifest.json" in done.stderr
    assert "Traceback" not in done.stderr
