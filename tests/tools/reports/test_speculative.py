"""The report counts equal answers and forwards, and fails if two decodes differ."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tools.reports.speculative import Pair, main, pair_of


def test_equal_answers(tiny_bundle: Path) -> None:
    run = CliRunner().invoke(main, [str(tiny_bundle), "--decodes", "2", "--seed", "7"], catch_exceptions=False)
    assert run.exit_code == 0
    (line,) = [line for line in run.output.splitlines() if line.startswith("| all ")]
    assert [cell.strip() for cell in line.split("|")[2:5]] == ["2", "2", "0"]


def test_different_answers(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*arguments: Any) -> Pair:
        pair = pair_of(*arguments)
        return replace(pair, speculative=replace(pair.speculative, text="?"))

    monkeypatch.setattr("tools.reports.speculative.pair_of", other)
    run = CliRunner().invoke(main, [str(tiny_bundle), "--decodes", "1"], catch_exceptions=False)
    assert run.exit_code == 1
    assert "differs: GenerationConfig(" in run.output
