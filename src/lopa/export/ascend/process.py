"""Runs one command to its end, its output in a file, and leaves no process behind. Knows nothing of what it runs."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

Elapsed = Callable[[float], None]
"""Called about every second with the seconds since the start."""
_GRACE = 5.0
"""Seconds between asking a process to end and ending it."""


def run_command(
    command: Sequence[str], *, program: Path, folder: Path, log: Path, environment: Mapping[str, str], elapsed: Elapsed
) -> int:
    """Run the file `program` with the arguments `command` (its own name first) in `folder`; append its output to `log`.

    Gives its exit code, negative for a signal. When this is left early (Ctrl-C), the process and all that it started
    are ended first: they are a process group of their own.
    """
    start = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            executable=program,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(1)
                elapsed(time.monotonic() - start)
        finally:
            _end_group(process)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of the process's group, which has its number."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except (ProcessLookupError, PermissionError):
            break  # nothing is left
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
