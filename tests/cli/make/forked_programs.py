"""Programs in forks of a process that has imported all they need but huggingface_hub, which reads the environment.

As a program: run a program for each line of standard input, and print its exit code.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess


class ForkedPrograms:
    """A process that runs programs in forks of itself."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "tests.cli.make.forked_programs"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    def run(self, program: str, *arguments: str, folder: Path, environment: Mapping[str, str]) -> CompletedProcess[str]:
        """Run Python code in `folder`, with arguments and with more variables. It has five minutes."""
        streams = [folder.parent / f"{name}-of-program" for name in ("output", "errors")]
        request = [program, arguments, str(folder), dict(environment), *map(str, streams)]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        texts = [stream.read_text() for stream in streams]
        for stream in streams:
            stream.unlink()
        return CompletedProcess(arguments, code, *texts)

    def close(self) -> None:
        self._process.communicate(timeout=60)


def _run(program: str, arguments: list[str], folder: str, environment: dict[str, str], *streams: str) -> None:
    os.chdir(folder)
    os.environ.update(environment)
    for number, stream in enumerate(streams, start=1):
        os.dup2(os.open(stream, os.O_CREAT | os.O_WRONLY), number)
    signal.alarm(300)
    sys.argv = ["program", *arguments]
    exec(program, {})


if __name__ == "__main__":
    libraries = ("filelock", "httpcore2", "httpx2", "onnxruntime", "tokenizers", "tqdm.auto", "truststore", "yaml")
    for name in (*libraries, "lopa.cli.main", "lopa.cli.make.hub_sources", "tools.report"):
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(*json.loads(line))
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
