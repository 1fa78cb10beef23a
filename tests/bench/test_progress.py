"""Progress on a terminal and in a log: bars, lines with rate and remaining time, ends, and nothing when quiet."""

import io
import re

import pytest
from rich.console import Console

from lopa.bench import progress as progress_module
from lopa.bench.progress import Progress, bytes_text, count_text, duration_text, show_progress


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "_now", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120)
    monkeypatch.setattr(progress_module, "terminal_console", lambda: console)
    return text


def test_formats_of_durations_counts_and_bytes() -> None:
    seconds = (0.44, 9.4, 12.4, 119, 125, 3599.9, 7500)
    assert [duration_text(each) for each in seconds] == [
        "0.4 s", "9.4 s", "12 s", "119 s", "2 min 5 s", "1 h 0 min", "2 h 5 min"
    ]  # fmt: skip
    assert [count_text(each) for each in (0.123456, 3, 45.678, 123456.7)] == ["0.123", "3", "45.7", "123,457"]
    assert [bytes_text(count) for count in (9_700_000, 15_231_000_000)] == ["9.7 MB", "15.23 GB"]


def test_in_a_log_every_stage_has_rate_time_left_and_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(bytes_text) as progress:
        progress("tracing", 0, 0)
        clock.now += 12
        for done in range(0, 101):
            progress("writing", done * 1_000_000_000, 100_000_000_000)
            clock.now += 1
        progress("hashing", 0, 0)
        clock.now += 0.5
    lines = capsys.readouterr().err.splitlines()
    assert lines[:3] == ["tracing", "tracing: 12 s", "writing (100.00 GB)"]
    assert lines[3] == "writing: 10.00 GB of 100.00 GB, 1.00 GB a second, 90 s left"
    assert lines[-2:] == ["writing: 100.00 GB in 100 s, 1.00 GB a second", "hashing"]
    assert 10 <= len(lines) <= 16
    assert progress.seconds == 12 + 101 + 0.5


def test_units_of_an_earlier_run_have_no_rate_and_a_note_replaces_it(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(transient=True) as progress:
        progress.stage("prompts", 20, done=10)
        clock.now += 10
        progress.advance(12)
        clock.now += 10
        progress.advance(14, note="5 tokens per second")
    assert capsys.readouterr().err.splitlines() == [
        "prompts (20)",
        "prompts: 12 of 20, 0.2 a second, 40 s left",
        "prompts: 14 of 20, 5 tokens per second, 30 s left",
    ]


def test_interleaved_phases_begin_and_end_once_and_a_repeated_stage_again(capsys: pytest.CaptureFixture[str]) -> None:
    """TensorRT reports phases from several threads, and the last step of a phase twice."""
    with Progress() as progress:
        for step in range(3):
            progress("one", step, 2)
            progress("two", step, 2)
        progress("one", 2, 2)
        progress("one", 1, 2)
        progress("one", 2, 2)
    lines = [re.sub(" in .*", "", line) for line in capsys.readouterr().err.splitlines()]
    assert lines == ["one (2)", "two (2)", "one: 2", "two: 2", "one (2)", "one: 2"]


def test_on_a_terminal_every_stage_has_a_clock(terminal: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress("loading the checkpoint", 0, 0)
        for done in range(4):
            progress("comparing", done, 3)
        progress.line("a line")
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "a line" in text
    last = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()][-2:]
    assert re.match(r"loading the checkpoint ━+ +0:00:00 left 0:00:00", last[0])
    assert re.match(r"comparing +━+ 3 of 3, .* a second +0:00:00 left 0:00:00", last[1])
    assert capsys.readouterr().err == ""


def test_the_last_line_is_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("forwards", 4) as progress:
        for done in range(1, 5):
            progress(done)
    first, last = capsys.readouterr().err.splitlines()
    assert (first, last.partition(" in ")[0]) == ("forwards (4)", "forwards: 4")
    with pytest.raises(KeyboardInterrupt):
        _interrupted()
    assert capsys.readouterr().err == "forwards (4)\nforwards: stopped after 1 of 8\n"
    with show_progress("forwards", 4) as progress:
        progress(2, 2)
    assert "\nforwards: 2 in " in capsys.readouterr().err


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(quiet=True) as progress:
        progress.stage("forwards", 1)
        progress.advance(1)
        assert capsys.readouterr().err == ""
        progress.line("error: a problem")
    assert capsys.readouterr().err == "error: a problem\n"


def _interrupted() -> None:
    with show_progress("forwards", 4) as progress:
        progress(1, 8)
        raise KeyboardInterrupt


def test_slow_units_and_stages_without_a_count(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.stage("prompts", 3)
        clock.now += 42
        progress.advance(1)
        progress.stage("compiling")
        for _ in range(130):
            progress("compiling", 0, 0)
            clock.now += 1
    assert capsys.readouterr().err.splitlines() == [
        "prompts (3)",
        "prompts: 1 of 3, 42 s each, 84 s left",
        "compiling",
        "compiling: 60 s",
        "compiling: 2 min 0 s",
        "prompts: stopped after 1 of 3",
        "compiling: 2 min 10 s",
    ]
