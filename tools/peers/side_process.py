"""One side of the comparison, run as a process.

Lines to the process, and its reply to each. FILE has int32 tokens: the prefix, then every branch's window.

    reserve PREFIX BRANCHES WINDOW   reserved     sizes of the largest forward that follows

    first COUNT FILE                 seconds      of a forward of COUNT tokens: the first one in the process

    prefix COUNT FILE                seconds      of computing the prefix, or none for a side without a cache

    windows BRANCHES WINDOW FILE     ready        the windows of the following forwards

    run                              seconds      of one forward of the windows

    answer PATH                      logits       PATH has float32 [branches, window, vocabulary], or
                                     statistics   of the contract, as numpy's npz
"""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.errors import BadInputError, CheckFailedError, MissingBackendError
from tools.peers.agreement import SideAnswer, answer_from_logits
from tools.peers.process_memory import ProcessMemory, memory_of_process

_KILLED_FIRST = "1000"
"""Value of oom_score_adj: if memory runs out, Linux ends this process before any other."""


class SideProcess:
    """One side, open until `close`."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start `command` with `environment` added to this process's.

        Output other than replies goes to files in `folder`, which the caller owns. Raises MissingBackendError if its
        library is missing, BadInputError if it rejects its input, and CheckFailedError if it exits for another reason.
        """
        self.name = name
        self._command = tuple(command)
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._began = time.perf_counter()
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text(_KILLED_FIRST)
        try:
            self._expect("open")
        except BaseException:
            self.close()
            raise

    def reserve(self, prefix: int, branches: int, window: int) -> float:
        """Reserve memory for the largest forward. Return the seconds since the process started."""
        self._send(f"reserve {prefix} {branches} {window}")
        self._expect("reserved")
        return time.perf_counter() - self._began

    def first(self, count: int, tokens: Path) -> float:
        """Return the seconds of a forward of the first `count` tokens."""
        self._send(f"first {count} {tokens}")
        return float(self._line())

    def prefix(self, count: int, tokens: Path) -> float | None:
        """Compute the prefix of the following windows. Return its seconds, or None for a side without a cache."""
        self._send(f"prefix {count} {tokens}")
        line = self._line()
        return None if line == "none" else float(line)

    def windows(self, tokens: Path, shape: ForwardShape) -> None:
        """Set the windows of the following forwards. Their prefix must be the computed one."""
        self._send(f"windows {shape.branches} {shape.window} {tokens}")
        self._expect("ready")

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

    def memory(self) -> ProcessMemory | None:
        """Return the memory of the process now, or None if the system does not report it."""
        return memory_of_process(self._process.pid)

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
        reason = output.rpartition("error: ")[2].partition("\n")[0]
        if status == MissingBackendError.exit_code:
            raise MissingBackendError(
                reason, expected=f"the requirements of {self.name}", remedy="run python -m tools.peers prepare"
            )
        if status == BadInputError.exit_code:
            raise BadInputError(
                f"{self.name}: {reason}", expected="input that it accepts", remedy=f"see {shlex.join(self._command)}"
            )
        if status == -signal.SIGKILL:
            raise MissingBackendError(
                "the system ended it, probably because memory ran out",
                expected="enough free memory",
                remedy="free memory, or leave the side out",
            )
        raise CheckFailedError(
            f"{self.name} ended with {status}: {output[-600:]}",
            expected="a reply to every line",
            remedy=f"run it manually: {shlex.join(self._command)}",
        )
