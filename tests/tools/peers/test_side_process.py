"""A side as a process: its input, its replies, and every way to end."""

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tools.peers.process_memory import memory_of_process
from tools.peers.side_process import SideProcess

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.errors import BadInputError, CheckFailedError, LopaError, MissingBackendError

SHAPE = ForwardShape(branches=2, window=3, prefix=4, wanted=3)
SIDE = """
import array, os, sys
print("open", flush=True)
for line in sys.stdin:
    what, *words = line.split()
    if what == "reserve":
        kept = bytearray(int(os.environ.get("KEPT", "0")))
        kept[::4096] = b"1" * len(kept[::4096])
        print("reserved", flush=True)
    elif what == "first":
        print("0.5", flush=True)
    elif what == "prefix":
        prefix = int(words[0])
        print("1.5" if prefix else "none", flush=True)
    elif what == "windows":
        arguments = words
        print("ready", flush=True)
    elif what == "run":
        print("0.25", flush=True)
    elif what == "answer":
        tokens = array.array("i", open(arguments[2], "rb").read())[prefix:]
        rows = [[float(column == token) for column in range(5)] for token in tokens]
        open(words[0], "wb").write(array.array("f", sum(rows, [])).tobytes())
        print("logits", flush=True)
"""


def started(program: str, folder: Path) -> SideProcess:
    return SideProcess("a side", [sys.executable, "-c", program], folder)


def test_every_line_and_its_reply(tmp_path: Path) -> None:
    tokens = np.array([9, 9, 9, 9, 4, 0, 1, 2, 3, 0], np.int32)
    tokens.tofile(tmp_path / "tokens")
    with closing(started(SIDE, tmp_path)) as side:
        assert side.reserve(4, 2, 3) > 0
        assert side.first(2, tmp_path / "tokens") == 0.5
        assert side.prefix(4, tmp_path / "tokens") == 1.5
        side.windows(tmp_path / "tokens", SHAPE)
        assert side.run() == 0.25
        np.testing.assert_array_equal(side.answer(SHAPE).best, tokens[4:])
    assert not (tmp_path / "answer").exists()


def test_a_side_without_a_cache_has_no_prefill(tmp_path: Path) -> None:
    with closing(started(SIDE, tmp_path)) as side:
        assert side.prefix(0, tmp_path / "tokens") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_environment_are_those_of_the_process(tmp_path: Path) -> None:
    found = []
    for kept in (0, 64 << 20):
        words = [sys.executable, "-c", SIDE]
        with closing(SideProcess("a side", words, tmp_path, {"KEPT": str(kept)})) as side:
            side.reserve(4, 2, 3)
            found.append(side.memory())
    less, more = found
    assert less is not None
    assert more is not None
    assert 60 << 20 < more.private - less.private < 80 << 20
    assert more.peak >= more.private
    assert memory_of_process(2**22 + 1) is None  # above the largest process id


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ("import sys; print('a note\\nerror: no library\\n  expected: it', file=sys.stderr); sys.exit(3)",
         MissingBackendError, "^no library\n"),
        ("import sys; print('error: no such form', file=sys.stderr); sys.exit(2)",
         BadInputError, "a side: no such form"),
        ("import os; os.kill(os.getpid(), 9)", MissingBackendError, "memory ran out"),
        ("raise RuntimeError('broken on purpose')", CheckFailedError, "ended with 1: (.|\n)*broken on purpose"),
        ("import os; os.abort()", CheckFailedError, "ended with -6"),
        ("print('hello')", CheckFailedError, "'hello'"),
    ],
)  # fmt: skip
def test_a_process_that_fails_to_open(program: str, error: type[LopaError], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        started(program, tmp_path)


def test_a_process_that_exits_unexpectedly(tmp_path: Path) -> None:
    program = "print('open', flush=True); input(); raise SystemExit('out of memory')"
    with closing(started(program, tmp_path)) as side:
        with pytest.raises(CheckFailedError, match="out of memory"):
            side.run()
        with pytest.raises(CheckFailedError, match="out of memory"):
            side.run()


def test_a_waiting_side_is_killed_with_its_context(tmp_path: Path) -> None:
    with closing(started(SIDE, tmp_path)) as side:
        process = side._process
        assert process.poll() is None
    assert process.returncode is not None
