"""Progress of the stages of an export or a verification, on a terminal and in a log."""

import io
import re

import pytest
from rich.console import Console

from lopa.bench import pace
from lopa.bench.pace import bytes_text
from lopa.cli.terminal import progress_bars
from lopa.cli.terminal.stages import StageProgress


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace.Pace.__init__, "__defaults__", (pace.count_text, clock))
    return clock


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> io.StringIO:
    text = io.StringIO()
    console = Console(file=text, force_terminal=request.param, width=120)
    monkeypatch.setattr(progress_bars, "Console", lambda **_options: console)
    return text


@pytest.mark.parametrize("shown", [False], indirect=True)
def test_in_a_log_every_stage_has_rate_time_left_and_end(shown: io.StringIO, clock: Clock) -> None:
    with StageProgress(bytes_text) as progress:
        progress("tracing", 0, 0)
        clock.now += 12
        for done in range(0, 101):
            progress("writing", done * 1_000_000_000, 100_000_000_000)
            clock.now += 1
        progress("hashing", 0, 0)
        clock.now += 0.5
    lines = shown.getvalue().splitlines()
    assert lines[:3] == ["tracing", "tracing: 12 s", "writing (100.00 GB)"]
    assert lines[3] == "writing: 10.00 GB of 100.00 GB, 1.00 GB a second, 90 s left"
    assert lines[-2:] == ["writing: 100.00 GB in 101 s, 990.1 MB a second", "hashing"]
    assert 10 <= len(lines) <= 16
    assert progress.seconds == 12 + 101 + 0.5


@pytest.mark.parametrize("shown", [True], indirect=True)
def test_on_a_terminal_every_stage_has_a_clock(shown: io.StringIO) -> None:
    with StageProgress() as progress:
        progress("loading the checkpoint", 0, 0)
        for done in range(4):
            progress("comparing", done, 3)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown.getvalue())
    last = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()][-2:]
    assert re.match(r"loading the checkpoint ━+ +0:00:00 left 0:00:00", last[0])
    assert re.match(r"comparing +━+ 3 of 3, .* a second +0:00:00 left 0:00:00", last[1])


@pytest.mark.parametrize("shown", [False], indirect=True)
def test_a_stage_that_fails_has_no_end(shown: io.StringIO) -> None:
    with pytest.raises(KeyError):
        _failing()
    assert shown.getvalue().splitlines() == ["comparing (3)"]


def _failing() -> None:
    with StageProgress() as progress:
        progress("comparing", 1, 3)
        raise KeyError
