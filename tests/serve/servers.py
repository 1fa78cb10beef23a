"""A real server process on a free port, and the official client for it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from tests.forked import ForkedProcess

if TYPE_CHECKING:
    import httpx2
    import openai

Process = subprocess.Popen[str] | ForkedProcess
WAIT = 60.0
"""Seconds after which an expected event counts as lost."""
_NEEDED = ("starlette", "uvicorn", "httptools", "prometheus_client", "httpx2", "openai")
_READY = r"(http://\S+)/v1\b"
"""Line of a server that accepts requests, with its URL."""
OPENING = r"(http://\S+): opening \S+ on cpu \(float32, \d+\.\d MB\)$"
"""Line of a server that answers while it opens its bundle, with its URL."""
STOPPING = "stopping: running requests finish, new ones are rejected"
INVALID = "Invalid HTTP request received."
"""Part of the log line about invalid HTTP."""


def until(is_true: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not is_true():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.02)


class Server:
    """Process of `lopa-export serve`."""

    def __init__(self, process: Process, url: str, head: list[str]) -> None:
        self.process, self.url = process, url
        self.head = head
        """Lines on standard error before the context began."""
        # These imports are here, since conftest.py files import this module and other tests must work without them.
        httpx, client = pytest.importorskip("httpx2"), pytest.importorskip("openai").OpenAI
        self.http: httpx2.Client = httpx.Client(base_url=url, timeout=WAIT, trust_env=False)
        self.client: openai.OpenAI = client(
            base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=httpx.Client(timeout=WAIT, trust_env=False)
        )

    @contextmanager
    def strict_client(self, name: str) -> "Iterator[Any]":
        """Yield OpenAI's or Anthropic's client. It validates every field of answers and events."""
        path = "/v1" if name == "OpenAI" else ""
        with getattr(pytest.importorskip(name.lower()), name)(
            base_url=f"{self.url}{path}",
            api_key="none",
            max_retries=0,
            http_client=pytest.importorskip("httpx2").Client(timeout=WAIT, trust_env=False),
            _strict_response_validation=True,
        ) as client:
            yield client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def metric(self, line: str) -> float:
        """Return the value of the metric that begins with `line`, or 0."""
        found = re.search(rf"^{re.escape(line)}\S* (\S+)$", self.http.get("/metrics").text, re.MULTILINE)
        return 0.0 if found is None else float(found[1])

    def until_idle(self) -> None:
        """Wait until no request runs or waits."""
        self.until(lambda: self.metric("lopa_requests_running") + self.metric("lopa_requests_waiting") == 0)

    until = staticmethod(until)

    def stop(self, number: int = 15) -> tuple[int, str]:
        """Stop the server. Return its exit code and its output since it was ready."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        _, output = self.process.communicate(timeout=WAIT)
        return self.process.wait(WAIT), output


@contextmanager
def serving(
    bundle: Path,
    *options: object,
    program: tuple[str, ...] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
    line: str = _READY,
) -> Iterator[Server]:
    """Run a server, as an argument of Python's if `program` is given. Yield it once it writes what matches `line`."""
    for library in _NEEDED:
        pytest.importorskip(library)
    arguments = ["serve", str(bundle), "--port", "0", "--model", "tiny", "--threads", "1", *map(str, options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    process: Process = (
        subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        if program
        else ForkedProcess(arguments, environment)
    )
    try:
        assert process.stderr is not None
        head: list[str] = []
        while not (found := re.search(line, head[-1] if head else "")):
            written = process.stderr.readline()
            assert written, "".join(head)
            head.append(written)
        server = Server(process, found[1], head)
        try:
            yield server
        finally:
            server.http.close()
            server.client.close()
    finally:
        if process.poll() is None:
            process.kill()
        if process.stderr is not None and not process.stderr.closed:
            process.communicate(timeout=WAIT)
