"""tools/reports/shared_rows.py on the tiny bundle: a line for each number of branches, and the same best tokens."""

import re
from pathlib import Path

from click.testing import CliRunner
from tools.reports.shared_rows import main


def test_the_report(tiny_bundle: Path) -> None:
    arguments = [str(tiny_bundle), str(tiny_bundle), "--branches", "2,3", "--samples", "3", "--limit", "1"]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    rows = re.findall(r"^\| (\d) \| (1\.\d+) .* of 3 .* 1\.0000 \|$", done.stdout, re.MULTILINE)
    assert [branches for branches, _ in rows] == ["2", "3"]
