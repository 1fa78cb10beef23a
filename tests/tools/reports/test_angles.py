"""Deviations at large positions: a right graph has none, a graph with wrong angles has large ones."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tools.reports.angles import WINDOW, deviations, main

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.rotary import RotaryAngles


def test_a_right_graph(tiny_bundle: Path) -> None:
    run = CliRunner().invoke(main, [str(tiny_bundle), "--start", "5000"], catch_exceptions=False)
    assert run.exit_code == 0
    (line,) = [line for line in run.output.splitlines() if line.startswith("| standard")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1:5] == ["float32", "in the graph", "cpu", "5000 to 5191"]
    assert float(cells[5]) < 1e-3
    assert cells[-1] == "0"


def test_rounded_angles_show(tiny_rotary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round the product of position and frequency to float16 for the graph, but not for the reference."""
    bundle = Bundle.open(tiny_rotary)
    (right,) = deviations(bundle, "cpu", [5000])
    exact = RotaryAngles.cosines_and_sines

    def rounded(self: RotaryAngles, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if positions.ndim == 4:  # numpy's session has an axis of heads
            return exact(self, positions)
        angles = (positions[..., None] * self.inverse_frequencies()).astype(np.float16).astype(np.float32)
        return np.cos(angles), np.sin(angles)

    monkeypatch.setattr(RotaryAngles, "cosines_and_sines", rounded)
    (wrong,) = deviations(bundle, "cpu", [5000])
    assert wrong.rows > 0.5 > 1e-3 > right.rows
    assert wrong.different > WINDOW // 10 > right.different == 0
