"""A build's phases as bars on a terminal, and as a line each elsewhere."""

import io

import pytest
from rich.console import Console

from lopa.cli.shown import bars as shown_bars
from lopa.cli.shown.build_progress import BuildProgress


@pytest.mark.parametrize("terminal", [True, False])
def test_phases_are_shown(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=80)
    monkeypatch.setattr(shown_bars, "Console", lambda **_options: console)
    with BuildProgress() as progress:
        for phase, steps in (("Building engine", 3), ("Timing", 20)):
            for step in range(steps + 1):
                progress(phase, step, steps)
    text = shown.getvalue()
    if terminal:
        assert "Building engine" in text
        assert "20/20" in text
    else:
        assert text.splitlines() == ["TensorRT: Building engine", "TensorRT: Timing"]
