"""Execution of one command with its output in a file. No child process is left running."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

Elapsed = Callable[[float], None]
"""Callback with the seconds since the start, called about once per second."""
_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""


def run_command(
    command: Sequence[str], *, program: Path, folder: Path, log: Path, environment: Mapping[str, str], elapsed: Elapsed
) -> int:
    """Run the file `program` with the arguments `command` (its name first) in `folder`. Append its output to `log`.

    Returns the exit code, negative for a signal. If interrupted (Ctrl-C), it first ends the process and its children,
    which form a process group.
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
    """End the remaining processes of the group that `process` leads."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
        except (ProcessLookupError, PermissionError):
            break  # no process is left
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
