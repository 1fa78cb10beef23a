"""A server process under test, and its externally visible state: metrics, log, memory, open files, threads and
processor time.

The last four are available on Linux only and 0 elsewhere.
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

MODEL = "served"
PROGRAM = ("-m", "lopa.cli.main")
_TIMEOUT = 60.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Resources:
    """Resources of a process."""

    megabytes: float
    files: int
    threads: int
    processor_seconds: float


@dataclass(frozen=True)
class ServerProcess:
    """A running server process."""

    process: "subprocess.Popen[bytes]"
    url: str
    """Base URL, http://HOST:PORT."""
    log: IO[bytes]
    """Standard error of the process."""

    def metrics(self) -> dict[str, float]:
        """Return all samples without the model label, by `name` or `name{label="value"}`."""
        found = {}
        for family in text_string_to_metric_families(httpx2.get(f"{self.url}/metrics", timeout=_TIMEOUT).text):
            for sample in family.samples:
                labels = ",".join(
                    f'{name}="{value}"' for name, value in sorted(sample.labels.items()) if name != "model"
                )
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def wait_until_idle(self, timeout: float) -> None:
        """Wait until no request runs or waits. Raises TimeoutError."""
        end = time.monotonic() + timeout
        while any(self.metrics()[f"lopa_requests_{state}"] for state in ("running", "waiting")):
            if time.monotonic() > end:
                raise TimeoutError("requests run or wait after all clients are done")
            time.sleep(_POLL_SECONDS)

    def text_of_log(self) -> str:
        """Return everything that the process has written, without moving its write position."""
        return os.pread(self.log.fileno(), os.fstat(self.log.fileno()).st_size, 0).decode(errors="replace")

    def resources(self) -> Resources:
        """Return the resources of the process without its grammar helper, or zeros outside Linux."""
        folder = Path(f"/proc/{self.process.pid}")
        if not folder.is_dir():
            return Resources(0.0, 0, 0, 0.0)
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        megabytes = int(fields["VmRSS"].split()[0]) / 1024
        ticks = sum(map(int, (folder / "stat").read_text().rpartition(")")[2].split()[11:13]))
        files = sum(1 for _ in (folder / "fd").iterdir())
        return Resources(round(megabytes, 1), files, int(fields["Threads"]), ticks / os.sysconf("SC_CLK_TCK"))


@contextmanager
def run_server(
    bundle: Path, options: Sequence[object], *, program: Sequence[str] = PROGRAM, log_file: Path | None = None
) -> Iterator[ServerProcess]:
    """Run a server of `bundle` on a free local port with one thread, and stop it.

    `program` contains Python's arguments before `serve`. `log_file` keeps the log. Raises CheckFailedError if the
    server does not start, or exits with another code than 0.
    """
    command = [sys.executable, *program, "serve", str(bundle), "--port", "0", "--model", MODEL, "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with TemporaryFile() if log_file is None else log_file.open("w+b") as log:  # not a pipe, which could fill up
        process = subprocess.Popen(
            [*command, *map(str, options)], stdout=subprocess.DEVNULL, stderr=log, env=environment
        )
        server = ServerProcess(process, "", log)
        try:
            end = time.monotonic() + _TIMEOUT
            while not (found := re.search(r"(http://\S+)/v1\b", server.text_of_log())):
                if process.poll() is not None or time.monotonic() > end:
                    raise _exit_error(server)
                time.sleep(_POLL_SECONDS)
            yield replace(server, url=found[1])
            process.terminate()
            if process.wait(_TIMEOUT) != 0:
                raise _exit_error(server)
        finally:
            process.kill()
            process.wait()


def _exit_error(server: ServerProcess) -> CheckFailedError:
    return CheckFailedError(
        f"the server's exit code is {server.process.poll()}: {server.text_of_log()[-500:]}",
        expected="a start within a minute, and exit code 0 after SIGTERM",
        remedy="check its log",
    )
