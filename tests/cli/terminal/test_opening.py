"""Status of generate and chat while the bundle opens, in real processes that wait for the test before they open it."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.command import PROMPT, lopa_export
from tests.slow_opening import SlowOpening, slow_opening

from lopa.cli.terminal import opening

WAIT = 60.0
"""Seconds after which an expected event counts as lost."""
QUESTION = PROMPT.replace("\n", " ")
COMMANDS = {"generate": [QUESTION], "chat": []}
"""Arguments of each command after its bundle. Chat reads the question."""
LIMIT = ["--max-new-tokens", "4"]
STATUS = r"opening \S+ on cpu \(float32, \d+\.\d MB\)"


@pytest.fixture
def slow(tmp_path: Path) -> SlowOpening:
    return slow_opening(tmp_path)


@contextmanager
def started(slow: SlowOpening, name: str, bundle: Path, stderr: int) -> Iterator["subprocess.Popen[str]"]:
    """Run a command that reads the question from standard input if it has no prompt."""
    process = subprocess.Popen(
        [sys.executable, *slow.program, name, str(bundle), *COMMANDS[name], *LIMIT, "--threads", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "400", "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(descriptor: int, is_enough: Callable[[str], object] = lambda _: False) -> str:
    """Return the text of a terminal until it is enough or the other side is closed."""
    seen, end = "", time.monotonic() + WAIT
    while not is_enough(seen):
        assert time.monotonic() < end, seen
        if select.select([descriptor], [], [], 0.2)[0]:
            try:
                seen += os.read(descriptor, 4096).decode(errors="replace")
            except OSError:
                break
    return seen


def test_a_terminal_shows_a_clock_until_the_bundle_is_open(slow: SlowOpening, tiny_bundle: Path) -> None:
    name = "chat"
    master, slave = pty.openpty()
    with started(slow, name, tiny_bundle, slave) as process:
        os.close(slave)
        shown = read_until(master, lambda seen: re.search(rf"{STATUS} .*0:00:01", seen))
        assert str(tiny_bundle) in shown
        slow.permit()
        output, _ = process.communicate(f"{QUESTION}\n", timeout=WAIT)
        rest = read_until(master)
    os.close(master)
    _, erased, after = rest.rpartition("\x1b[2K")
    assert erased, "the status is removed"
    assert "\x1b[?25h" in rest, "the cursor is visible again"
    assert "opening" not in after
    assert "4 tokens" in after
    assert process.returncode == 0
    assert output == lopa_export("generate", tiny_bundle, QUESTION, *LIMIT).stdout


@pytest.mark.parametrize(
    ("name", "number", "code", "message"),
    [("generate", signal.SIGTERM, 143, "terminated\n"), ("chat", signal.SIGINT, 130, "interrupted\n")],
)
def test_a_log_has_one_line_and_a_signal_ends_at_once(
    slow: SlowOpening, name: str, tiny_bundle: Path, number: int, code: int, message: str
) -> None:
    """Check also that the interpreter's cleanup is left out.

    ONNX Runtime aborts a process whose interpreter exits while a graph is being opened.
    """
    with started(slow, name, tiny_bundle, subprocess.PIPE) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.send_signal(number)
        output, errors = process.communicate(timeout=WAIT)
    assert re.fullmatch(STATUS, line.removesuffix("\n"))
    assert (process.returncode, output, errors) == (code, "", message)


def test_a_signal_restores_the_terminal(slow: SlowOpening, tiny_bundle: Path) -> None:
    master, slave = pty.openpty()
    with started(slow, "generate", tiny_bundle, slave) as process:
        os.close(slave)
        read_until(master, lambda seen: re.search(STATUS, seen))
        process.send_signal(signal.SIGINT)
        rest = read_until(master)
        assert process.wait(WAIT) == 130
    os.close(master)
    assert "\x1b[?25h" in rest
    assert rest.endswith("interrupted\r\n")


def test_a_short_opening_prints_nothing(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_SHORT_SECONDS", 0.0)
    monkeypatch.setattr(opening, "_LONG_SECONDS", WAIT)
    assert "opening" not in lopa_export("generate", tiny_bundle, QUESTION, *LIMIT).stderr


def test_quiet_prints_nothing(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SHORT_SECONDS", "_LONG_SECONDS"):  # the bundle opens later than that
        monkeypatch.setattr(opening, name, 0.0)
    assert lopa_export("generate", tiny_bundle, QUESTION, *LIMIT, "--quiet").stderr == ""
    assert re.match(rf"{STATUS}\n", lopa_export("generate", tiny_bundle, QUESTION, *LIMIT).stderr)
