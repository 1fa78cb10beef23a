"""Processes of lopa-export in forks of one that has imported the server and its libraries, which takes 0.7 s.

It has not imported huggingface_hub, which reads the environment when it is imported.

As a program: fork a process for each connection to the socket of the first argument, until standard input ends.
"""

import atexit
import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import TextIO

from tests.python_path import ROOT

from lopa.cli.main import main

_MODULES = (
    *("lopa.cli.decode.serve", "lopa.serve.server_process", "onnxruntime", "tokenizers", "jinja2.sandbox"),
    *("filelock", "httpcore2", "httpx2", "tqdm.auto", "truststore", "yaml", "lopa.cli.make.hub_sources"),
)


class ForkedProcess:
    """A running lopa-export, or Python `program`, with the methods of subprocess.Popen that tests need.

    Its standard error is a pipe. Its standard output goes to `output`, if that is given.
    """

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        *,
        program: str = "",
        folder: Path = ROOT,
        output: TextIO | None = None,
    ) -> None:
        self.args = ["lopa-export", *arguments]
        self.returncode: int | None = None
        read, write = os.pipe()
        self.stderr = os.fdopen(read, encoding="utf-8")
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_address())
        request = json.dumps([self.args, dict(environment), program, str(folder)]).encode()
        socket.send_fds(self._connection, [request], [write, *([] if output is None else [output.fileno()])])
        os.close(write)
        self._answers = self._connection.makefile("rb")
        self.pid = int(self._answers.readline())

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(TimeoutError):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit code. Raises TimeoutError if the process runs for `timeout` more seconds."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise TimeoutError(f"the process still runs after {timeout} s")
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def end(self) -> None:
        """Kill the process if it still runs, and close its standard error."""
        if not self.stderr.closed:
            self.kill()
            self.communicate(60)

    def communicate(self, timeout: float) -> tuple[None, str]:
        """Return the rest of standard error once the process has ended."""
        end = threading.Timer(timeout, self.kill)
        end.start()
        try:
            errors = self.stderr.read()
            self.wait(timeout)
        finally:
            end.cancel()
            self.stderr.close()
        return None, errors


def run_program(
    program: str, arguments: list[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run Python code in `folder`. It has five minutes."""
    with TemporaryFile("w+") as output:
        process = ForkedProcess(arguments, environment, program=program, folder=folder, output=output)
        _, errors = process.communicate(300)
        output.seek(0)
        return subprocess.CompletedProcess(arguments, process.wait(0), output.read(), errors)


@cache
def _address() -> str:
    """Start the process that forks, and return the address of its socket."""
    address = str(Path(mkdtemp(prefix="forks-")) / "socket")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.forked", address]
    started = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n"
    atexit.register(shutil.rmtree, Path(address).parent)
    atexit.register(started.communicate)
    return address


def _fork_until_input_ends(address: str) -> None:
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that watch
    print("ready", flush=True)
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if not os.fork():
            listening.close()
            _watch(connection)
        connection.close()


def _watch(connection: socket.socket) -> None:
    """Run a command in a child. Answer with its id, and at the end with its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, (errors, *output), *_ = socket.recv_fds(connection, 1 << 20, 2)
    arguments, environment, program, folder = json.loads(request)
    child = os.fork()
    if not child:
        connection.close()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup, and shells in the background, let children ignore these
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(errors, 2)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(output[0] if output else nothing, 1)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        if "KEPT_TRACES" in environment:
            importlib.import_module("tests.export.in_processes.sitecustomize")
        exec(program, {}) if program else main()
        sys.exit()
    for stream in (errors, *output):
        os.close(stream)
    connection.sendall(b"%d\n" % child)
    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0)


if __name__ == "__main__":
    _fork_until_input_ends(sys.argv[1])
