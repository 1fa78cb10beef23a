"""Progress of a TensorRT build and of ATC: bars and a clock on a terminal, lines elsewhere."""

import io

import pytest
from rich.console import Console

from lopa.cli.compile.build_progress import AtcProgress, TensorRTProgress
from lopa.cli.terminal import progress_bars


@pytest.mark.parametrize("terminal", [True, False])
def test_phases_are_shown(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=80)
    monkeypatch.setattr(progress_bars, "Console", lambda **_options: console)
    with TensorRTProgress() as progress:
        for phase, steps in (("Building engine", 3), ("Timing", 20)):
            for step in range(steps + 1):
                progress(phase, step, steps)
    text = shown.getvalue()
    if terminal:
        assert "Building engine" in text
        assert "20/20" in text
    else:
        assert text.splitlines() == ["TensorRT: Building engine", "TensorRT: Timing"]


def test_lines_of_atc_elsewhere_than_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with AtcProgress() as progress:
        for seconds in (0.0, 1.0, 29.5, 30.5, 31.0, 59.0, 60.2, 0.0, 1.0, 30.1):
            progress("buckets", seconds)
    assert capsys.readouterr().err.splitlines() == [
        "atc compiles buckets; this takes minutes for each bucket",
        "atc buckets: 30 s",
        "atc buckets: 60 s",
        "atc compiles buckets; this takes minutes for each bucket",
        "atc buckets: 30 s",
    ]
