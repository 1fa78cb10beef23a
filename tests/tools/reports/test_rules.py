"""The report of rules: decodes are kept, and a second run reads them."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.reports.rules import main
from tools.rules import configurations

from lopa.runtime import BadInputError
from lopa.runtime.strategy import strategies
from lopa.tiny import EVAL

pytestmark = pytest.mark.slow


def test_a_second_run_decodes_nothing(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_registered", {})
    monkeypatch.setattr(configurations, "BRANCHES", (1, 4))
    monkeypatch.setattr(configurations, "THRESHOLDS", (0.9,))
    kept = tmp_path / "outcomes.jsonl"
    arguments = [str(tiny_bundle), str(EVAL), "--outcomes", str(kept), "--limit", "10", "--max-new-tokens", "32"]
    first = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert first.exit_code == 0
    lines, count = kept.read_text().splitlines(), len(configurations.all_configs())
    assert len(lines) == 1 + 10 * count
    # An interrupted run: the last question is missing, and a line was cut.
    kept.write_text("\n".join(lines[:-count]) + '\n{"question": ')
    again = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert kept.read_text().splitlines()[: -len(configurations.all_configs())] == lines[:-count]
    third = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert (again.exit_code, third.exit_code) == (0, 0)
    assert tables_of(third.stdout) == tables_of(again.stdout)
    for rule in (configurations.LOPA, *configurations.RULES):
        assert first.stdout.count(f"| {rule.name} ") >= 3


def test_new_questions(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_registered", {})
    kept = tmp_path / "outcomes.jsonl"
    arguments = [
        str(tiny_bundle),
        str(EVAL),
        "--outcomes",
        str(kept),
        "--new-questions",
        "10",
        "--max-new-tokens",
        "32",
    ]
    run = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert run.exit_code == 0
    assert len(kept.read_text().splitlines()) == 1 + 10 * len(configurations.promising_configs())
    assert "| Info-Gain, cost 0.1 | " in run.stdout
    assert "first masked" not in run.stdout


def tables_of(report: str) -> list[str]:
    return [line for line in report.splitlines() if line.startswith("|")]


def test_too_few_questions(tiny_bundle: Path, tmp_path: Path) -> None:
    evaluation = tmp_path / "eval.jsonl"
    evaluation.write_text("".join(EVAL.read_text().splitlines(keepends=True)[:9]))
    arguments = [str(tiny_bundle), str(evaluation), "--outcomes", str(tmp_path / "outcomes.jsonl")]
    with pytest.raises(BadInputError, match="has 9 questions of kind math"):
        CliRunner().invoke(main, arguments, catch_exceptions=False)
