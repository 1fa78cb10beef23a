"""Run lopa-export in this process, with its streams and its exit code. Starting a process would double the time.

test_main.py tests closed streams, signals and imports in real processes. tests/test_readme.py starts a process for each
command.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import IO

import pytest

from lopa import tiny
from lopa.cli.main import main

PROMPT = json.loads(tiny.EVAL.read_text(encoding="utf-8").splitlines()[0])["prompt"]
BROKEN_DEVICES = """
import sys
from lopa.cli.main import main
from lopa.runtime.sessions.host_session import HostSession

class Broken(HostSession):
    "A test stand-in: the devices in the first argument fail in their third forward."
    forwards = 0
    def wait(self, ticket):
        self.forwards += 1
        if self.forwards == 3 and self.device in sys.argv[1]:
            raise OSError("the fan stopped")
        return super().wait(ticket)

from lopa.runtime.sessions import numpy_session, onnxruntime_session
numpy_session.HostSession = onnxruntime_session.HostSession = Broken
main(sys.argv[2:])
"""
"""Program whose first argument names the failing devices. The other arguments are the command."""


def lopa_export(*arguments: object, stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
    command = [*map(str, arguments)]
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin.encode() if isinstance(stdin, str) else stdin)
        given.seek(0)
        with _streams(given, out, err), pytest.raises(SystemExit) as end:
            main(command)
        assert isinstance(end.value.code, int)
        return subprocess.CompletedProcess(command, end.value.code, _written(out), _written(err))


def outcome(*arguments: object) -> tuple[int, str, str]:
    """Return exit code, output and errors of a command."""
    done = lopa_export(*arguments)
    return done.returncode, done.stdout, done.stderr


def without(*names: str, first: str = "") -> str:
    """Return Python that runs `first` and lopa-export in a process in which these packages cannot be imported."""
    return f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {names!r}:
            raise ModuleNotFoundError(f'{{name}} is refused', name=name)

sys.meta_path.insert(0, Refuse())
{first}
from lopa.cli.main import main
main()
"""


@contextmanager
def _streams(*files: IO[bytes]) -> Iterator[None]:
    """Replace standard input, output and error by `files`, also for code that uses their numbers."""
    with ExitStack() as stack:
        for number, (name, file) in enumerate(zip(("stdin", "stdout", "stderr"), files, strict=True)):
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            os.dup2(file.fileno(), number)
            stream = stack.enter_context(open(number, "w" if number else "r", encoding="utf-8", closefd=False))
            stack.callback(setattr, sys, name, getattr(sys, name))
            setattr(sys, name, stream)
        yield


def _written(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
