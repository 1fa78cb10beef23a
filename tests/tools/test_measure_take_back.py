"""tools/measure_take_back.py on the tiny bundle: one prompt, and shadow rows beside masked windows."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.measure_take_back import VARIANTS, main


def test_the_tables(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.measure_take_back.VARIANTS", VARIANTS[-2:])
    monkeypatch.setattr("tools.measure_take_back.JUDGED", VARIANTS[-1].name)
    monkeypatch.setitem(VARIANTS[-1].options, "branches", 1)
    done = CliRunner().invoke(main, [str(tiny_bundle), "--limit", "1"], catch_exceptions=False)
    assert done.exit_code == 0
    title = re.search(r"(\d+) judged positions of .*: mean difference (0\.\d+)", done.stdout)
    assert title is not None
    assert int(title[1]) > 0
    assert float(title[2]) < 0.2, "they speak of the same tokens"
    assert len(re.findall(r"^\| lopa-4", done.stdout, re.MULTILINE)) == 2
