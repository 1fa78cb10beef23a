"""A server process to try, and what can be seen of it from outside: its metrics, memory, open files and threads.

Linux tells of the last three; elsewhere they are 0.
"""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from prometheus_client.parser import text_string_to_metric_families

from lopa.runtime.errors import CheckFailedError
from tools.serving.connection import Address

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
    address: Address
    log: IO[bytes]
    """Standard error of the process."""

    def metrics(self) -> dict[str, float]:
        """Every sample by its name and its labels but the model's, as `name` or `name{label="value"}`."""
        with urllib.request.urlopen(f"http://{self.address.host}:{self.address.port}/metrics", timeout=_WAIT) as told:
            return samples_of_text(told.read().decode())

    def text_of_log(self) -> str:
        """Return everything that the process has written to standard error."""
        return _text_of(self.log)

    def resources(self) -> Resources:
        """Now."""
        status, files = Path(f"/proc/{self.process.pid}/status"), Path(f"/proc/{self.process.pid}/fd")
        if not status.is_file():
            return Resources(0.0, 0, 0)
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        megabytes = int(fields["VmRSS"].split()[0]) / 1024
        return Resources(round(megabytes, 1), sum(1 for _ in files.iterdir()), int(fields["Threads"]))


def samples_of_text(text: str) -> dict[str, float]:
    """Samples of Prometheus' text format, as ServerProcess.metrics gives them."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()) if name != "model")
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


@contextmanager
def served(bundle: Path, options: Sequence[object], *, program: Sequence[str] = PROGRAM) -> Iterator[ServerProcess]:
    """A server of `bundle` on a free port of this machine, with one thread; asked to end at the end, or killed.

    `program` are the arguments of Python that come before `serve`. Raises CheckFailedError when the server does not
    begin, or ends otherwise than with exit code 0.
    """
    command = [sys.executable, *program, "serve", str(bundle), "--port", "0", "--model", MODEL, "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with TemporaryFile() as said:  # no pipe, which a server that says much would fill
        process = subprocess.Popen(
            [*command, *map(str, options)], stdout=subprocess.DEVNULL, stderr=said, env=environment
        )
        try:
            yield ServerProcess(process, _address_of(process, said), said)
            process.terminate()
            if process.wait(_WAIT) != 0:
                raise _ended(process, said)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _address_of(process: "subprocess.Popen[bytes]", said: IO[bytes]) -> Address:
    """Where it listens, as soon as it takes requests."""
    end = time.monotonic() + _WAIT
    while not (found := re.search(r"http://([^:]+):(\d+)/v1", _text_of(said))):
        if process.poll() is not None or time.monotonic() > end:
            raise _ended(process, said)
        time.sleep(_LOOK)
    return Address(found[1], int(found[2]))


def _ended(process: "subprocess.Popen[bytes]", said: IO[bytes]) -> CheckFailedError:
    return CheckFailedError(
        f"the server's exit code is {process.poll()}: {_text_of(said)[-500:]}",
        expected="a server that begins within a minute, and ends with 0 when it is asked to",
        remedy="see what it said",
    )


def _text_of(said: IO[bytes]) -> str:
    """The whole file, read without moving the place at which the other process writes."""
    return os.pread(said.fileno(), os.fstat(said.fileno()).st_size, 0).decode(errors="replace")
