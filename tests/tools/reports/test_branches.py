"""tools/reports/branches.py on the tiny bundle: every number of branches, beside one."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.reports.branches import Answer, main, row_of


def test_a_row_says_what_must_be_gained() -> None:
    """Twice the seconds a step for 1.5 times the tokens: a third slower."""
    alone = [Answer(seconds=1.0, steps=10, tokens=40), Answer(seconds=2.0, steps=20, tokens=80)]
    two = [Answer(seconds=4 / 3, steps=20 // 3 * 1, tokens=36), Answer(seconds=4.0, steps=20, tokens=120)]
    branches, answer, against, tokens, gained, _, needed = row_of(2, two, alone)
    assert (branches, answer) == ("2", "2666.7")
    assert against == "1.67"
    assert tokens == "6.00"
    assert gained == "1.50"
    assert needed == "2.11"
    assert row_of(1, alone, alone)[2::2] == ("1.00", "1.00", "1.00")


def test_the_report(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tiny_bundle), "--limit", "1", "--rounds", "1", "--branches", "3", "--max-new-tokens", "32"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    rows = re.findall(r"^\| (\d+) +\|", done.stdout, re.MULTILINE)
    assert rows == ["1", "3"]
    assert "2 prompts, 1 rounds" in done.stdout
    assert "answers: 4 in " in done.stderr
