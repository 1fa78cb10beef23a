"""The report counts equal answers and forwards, and fails where two decodes differ."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tools.reports.lossless import main

from lopa.runtime.decoding import speculation

SMALL = ("--strategy", "vanilla", "--limit", "1", "--max-new-tokens", "24", "--decodes", "2", "--seed", "7")


def test_equal_answers(tiny_bundle: Path) -> None:
    run = CliRunner().invoke(main, [str(tiny_bundle), *SMALL], catch_exceptions=False)
    assert run.exit_code == 0
    assert "| vanilla  |" in run.output
    assert run.output.count("(2 of 2)") == 3
    assert "2 random configs from seed 7: 2 with equal answers, 0 with more forwards" in run.output


def test_other_answers(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "_agrees", lambda draft, state, plan: len(draft.tokens) == len(state.tokens))  # noqa: ARG005
    run = CliRunner().invoke(main, [str(tiny_bundle), *SMALL[:6], "--decodes", "0"], catch_exceptions=False)
    assert run.exit_code == 1
    assert run.output.count("(2 of 2)") < 3
