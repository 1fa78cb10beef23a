"""A server process to try, and what can be seen of it from outside: its metrics, memory, open files and threads.

Linux tells of the last three; elsewhere they are 0.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from lopa.runtime.errors import CheckFailedError

MODEL = "soaked"
PROGRAM = ("-m", "lopa.cli.main")
_WAIT = 60.0
_LOOK = 0.02


@dataclass(frozen=True)
class Resources:
    """What a process holds."""

    megabytes: float
    files: int
    threads: int


@dataclass(frozen=True)
class ServerProcess:
    """A process that serves."""

    process: "subprocess.Popen[bytes]"
    url: str
    """http://HOST:PORT"""
    log: IO[bytes]
    """Standard error of the process."""

    def metrics(self) -> dict[str, float]:
        """Return every sample by its name and its labels but the model's, as `name` or `name{label="value"}`."""
        found = {}
        for family in text_string_to_metric_families(httpx2.get(f"{self.url}/metrics", timeout=_WAIT).text):
            for sample in family.samples:
                labels = ",".join(
                    f'{name}="{value}"' for name, value in sorted(sample.labels.items()) if name != "model"
                )
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def text_of_log(self) -> str:
        """Return everything that the process has written, without moving the place at which it writes."""
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")

    def resources(self) -> Resources:
        """Return memory, open files and threads of the process; zeros outside Linux."""
        status, files = Path(f"/proc/{self.process.pid}/status"), Path(f"/proc/{self.process.pid}/fd")
        if not status.is_file():
            return Resources(0.0, 0, 0)
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        megabytes = int(fields["VmRSS"].split()[0]) / 1024
        return Resources(round(megabytes, 1), sum(1 for _ in files.iterdir()), int(fields["Threads"]))


@contextmanager
def served(bundle: Path, options: Sequence[object], *, program: Sequence[str] = PROGRAM) -> Iterator[ServerProcess]:
    """Run a server of `bundle` on a free port of this machine, with one thread, and end it.

    `program` are the arguments of Python that come before `serve`. Raises CheckFailedError when the server does not
    begin, or ends otherwise than with exit code 0.
    """
    command = [sys.executable, *program, "serve", str(bundle), "--port", "0", "--model", MODEL, "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with TemporaryFile() as log:  # no pipe, which a server that writes much would fill
        process = subprocess.Popen(
            [*command, *map(str, options)], stdout=subprocess.DEVNULL, stderr=log, env=environment
        )
        server = ServerProcess(process, "", log)
        try:
            end = time.monotonic() + _WAIT
            while not (found := re.search(r"(http://\S+)/v1\b", server.text_of_log())):
                if process.poll() is not None or time.monotonic() > end:
                    raise _ended(server)
                time.sleep(_LOOK)
            yield replace(server, url=found[1])
            process.terminate()
            if process.wait(_WAIT) != 0:
                raise _ended(server)
        finally:
            process.kill()
            process.wait()


def _ended(server: ServerProcess) -> CheckFailedError:
    return CheckFailedError(
        f"the server's exit code is {server.process.poll()}: {server.text_of_log()[-500:]}",
        expected="a server that begins within a minute, and ends with 0 when it is terminated",
        remedy="read its log",
    )
