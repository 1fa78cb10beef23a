"""Progress lines: rate, remaining time and a summary, and nothing when quiet."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.python_path import python_path

from lopa.bench.pace import Pace, bytes_text, count_text, duration_text
from lopa.bench.progress import show_progress

ROOT = Path(__file__).resolve().parents[2]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_formats_of_durations_counts_and_bytes() -> None:
    seconds = (0.44, 9.4, 12.4, 119, 125, 3599.9, 7500)
    assert [duration_text(each) for each in seconds] == [
        "0.4 s", "9.4 s", "12 s", "119 s", "2 min 5 s", "1 h 0 min", "2 h 5 min"
    ]  # fmt: skip
    assert [count_text(each) for each in (0.123456, 3, 45.678, 123456.7)] == ["0.123", "3", "45.7", "123,457"]
    assert [bytes_text(count) for count in (9_700_000, 15_231_000_000)] == ["9.7 MB", "15.23 GB"]


def test_rate_and_time_left() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    assert pace.so_far(0, 840) == "0 of 840"
    clock.now += 6
    assert pace.so_far(120, 840) == "120 of 840, 20 a second, 36 s left"
    clock.now += 36
    assert pace.at_the_end(840) == "840 in 42 s, 20 a second"
    assert pace.rate(1) == "42 s each"


@pytest.mark.parametrize(("seconds_each", "lines"), [(0.001, 0), (0.1, 10), (10.0, 16), (61.0, 100)])
def test_number_of_log_lines(seconds_each: float, lines: int) -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    lines_due = 0
    for done in range(1, 101 if seconds_each > 0.1 else 1001):
        clock.now += seconds_each
        lines_due += pace.line_due(done, 100 if seconds_each > 0.1 else 1000)
    assert lines_due == pytest.approx(lines, abs=4)


def test_the_last_line_is_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("forwards", 4) as progress:
        for done in range(1, 5):
            progress(done)
    assert capsys.readouterr().err.startswith("forwards: 4 in ")
    with pytest.raises(KeyboardInterrupt):
        _interrupted()
    assert capsys.readouterr().err == "forwards: stopped after 1 of 8\n"
    with show_progress("forwards", 4) as progress:
        progress(2, 2)
    assert capsys.readouterr().err.startswith("forwards: 2 in ")


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("forwards", 1, quiet=True) as progress:
        progress(1)
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_bar_and_keeps_the_summary() -> None:
    program = (
        "from lopa.bench.progress import show_progress\n"
        "with show_progress('forwards', 3) as progress:\n"
        "    for done in range(4): progress(done)\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": python_path(ROOT / "src"), "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-c", program], stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    assert process.returncode == 0
    assert b"3/3" in shown
    assert shown.rstrip().splitlines()[-1].split(b"forwards: ")[-1].startswith(b"3 in ")


def _interrupted() -> None:
    with show_progress("forwards", 4) as progress:
        progress(1, 8)
        raise KeyboardInterrupt


def _read(terminal: int) -> bytes:
    """Return available output, or b"" when the other end is closed, which Linux reports as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
