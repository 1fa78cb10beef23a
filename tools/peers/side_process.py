"""A side of the comparison as a process: started, given tokens, run, asked for its answer. Knows no other side.

Lines to the process, and the line that comes back:

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
from tools.peers.agreement import Answer, answer_from_logits


class SideProcess:
    """One side, open until `close`."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        """Start `command`; what it writes beside its answers goes to files in `folder`, which is the caller's.

        Raises MissingBackendError when it says that its library is not here, CheckFailedError when it ends otherwise.
        """
        self.name = name
        self._command = tuple(command)
        self._folder = folder
        self._log = folder / f"{name}.log"
        with self._log.open("w") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
            )
        try:
            self._expect("open")
        except BaseException:
            self.close()
            raise

    def prepare(self, tokens: Path, shape: ForwardShape) -> None:
        """Compute the prefix; what follows runs the windows behind it."""
        self._tell(f"prepare {shape.prefix} {shape.branches} {shape.window} {tokens}")
        self._expect("prepared")

    def run(self) -> float:
        """Seconds of one forward."""
        self._tell("run")
        return float(self._line())

    def answer(self, shape: ForwardShape) -> Answer:
        """What the last forward, which was of `shape`, gave."""
        path = self._folder / "answer"
        rows = shape.branches * shape.window
        try:
            self._tell(f"answer {path}")
            if self._line() == "logits":
                return answer_from_logits(np.memmap(path, np.float32).reshape(rows, -1))
            with np.load(path) as found:
                return Answer(
                    best=found["ids"][..., 0].reshape(rows),
                    logprob=found["logprobs"][..., 0].reshape(rows),
                    entropy=found["entropy"].reshape(rows),
                )
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._raise_ended()

    def _expect(self, word: str) -> None:
        line = self._line()
        if line != word:
            raise CheckFailedError(f"{self.name} said {line!r}", expected=word, remedy="see what its program prints")

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._raise_ended()
        return line.rstrip("\n")

    def _raise_ended(self) -> NoReturn:
        status = self._process.wait()
        said = self._log.read_text(errors="replace").strip()
        if status == MissingBackendError.exit_code:
            reason = said.rpartition("error: ")[2].partition("\n")[0]
            raise MissingBackendError(
                reason, expected=f"what {self.name} needs", remedy="python -m tools.peers prepare"
            )
        raise CheckFailedError(
            f"{self.name} ended with {status}: {said[-600:]}",
            expected="an answer to every line",
            remedy=f"run it by hand: {shlex.join(self._command)}",
        )
