"""One side of the comparison, run as a process.

Lines to the process, and its reply to each:

    prepare PREFIX BRANCHES WINDOW FILE    prepared     FILE has int32 tokens: the prefix, then every branch's window

    run                                    seconds      of one forward of the windows

    answer FILE                            logits       FILE has float32 [branches, window, vocabulary], or
                                           statistics   of the contract, as numpy's npz
"""

import contextlib
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.errors import CheckFailedError, MissingBackendError
from tools.peers.agreement import SideAnswer, answer_from_logits


class SideProcess:
    """One side, open until `close`."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        """Start `command`. Output other than replies goes to files in `folder`, which the caller owns.

        Raises MissingBackendError if its library is missing, and CheckFailedError if it exits for another reason.
        """
        self.name = name
        self._command = tuple(command)
        self._folder = folder
        self._log = folder / f"{name}.log"
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
            )
        try:
            self._expect("open")
        except BaseException:
            self.close()
            raise

    def prepare(self, tokens: Path, shape: ForwardShape) -> None:
        """Compute the prefix of the following windows."""
        self._send(f"prepare {shape.prefix} {shape.branches} {shape.window} {tokens}")
        self._expect("prepared")

    def run(self) -> float:
        """Return the seconds of one forward."""
        self._send("run")
        return float(self._line())

    def answer(self, shape: ForwardShape) -> SideAnswer:
        """Return the answer of the last forward, which had `shape`."""
        path = self._folder / "answer"
        rows = shape.branches * shape.window
        try:
            self._send(f"answer {path}")
            if self._line() == "logits":
                return answer_from_logits(np.memmap(path, np.float32).reshape(rows, -1))
            with np.load(path) as found:
                return SideAnswer(
                    best=found["ids"][..., 0].reshape(rows),
                    logprob=found["logprobs"][..., 0].reshape(rows),
                    entropy=found["entropy"].reshape(rows),
                )
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Kill the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._raise_ended()

    def _expect(self, word: str) -> None:
        line = self._line()
        if line != word:
            raise CheckFailedError(f"{self.name} replied {line!r}", expected=word, remedy="check the program's output")

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._raise_ended()
        return line.rstrip("\n")

    def _raise_ended(self) -> NoReturn:
        status = self._process.wait()
        output = self._log.read_text(errors="replace").strip()
        if status == MissingBackendError.exit_code:
            reason = output.rpartition("error: ")[2].partition("\n")[0]
            raise MissingBackendError(
                reason, expected=f"the requirements of {self.name}", remedy="run python -m tools.peers prepare"
            )
        raise CheckFailedError(
            f"{self.name} ended with {status}: {output[-600:]}",
            expected="a reply to every line",
            remedy=f"run it manually: {shlex.join(self._command)}",
        )
