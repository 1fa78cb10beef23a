"""A side as a process: its input, its replies, and every way to end."""

import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tools.peers.side_process import SideProcess

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.errors import CheckFailedError, LopaError, MissingBackendError

SHAPE = ForwardShape(branches=2, window=3, prefix=4, wanted=3)
SIDE = """
import array, sys
print("open", flush=True)
for line in sys.stdin:
    what, *words = line.split()
    if what == "prepare":
        arguments = words
        print("prepared", flush=True)
    elif what == "run":
        print("0.25", flush=True)
    elif what == "answer":
        prefix, branches, window = map(int, arguments[:3])
        tokens = array.array("i", open(arguments[3], "rb").read())[prefix:]
        rows = [[float(column == token) for column in range(5)] for token in tokens]
        open(words[0], "wb").write(array.array("f", sum(rows, [])).tobytes())
        print("logits", flush=True)
"""


def started(program: str, folder: Path) -> SideProcess:
    return SideProcess("a side", [sys.executable, "-c", program], folder)


def test_prepare_run_and_answer(tmp_path: Path) -> None:
    tokens = np.array([9, 9, 9, 9, 4, 0, 1, 2, 3, 0], np.int32)
    tokens.tofile(tmp_path / "tokens")
    with closing(started(SIDE, tmp_path)) as side:
        side.prepare(tmp_path / "tokens", SHAPE)
        assert side.run() == 0.25
        np.testing.assert_array_equal(side.answer(SHAPE).best, tokens[4:])
    assert not (tmp_path / "answer").exists()


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ("import sys; print('a note\\nerror: no library\\n  expected: it', file=sys.stderr); sys.exit(3)",
         MissingBackendError, "^no library\n"),
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
