"""A reader who pastes the blocks of a page one after the other, in a folder of their own."""

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.pages.page_blocks import Block
from tests.serve.servers import until

_SERVER = re.compile(r"^(?:lopa-export serve|python -m http\.server) .*\n\Z", re.MULTILINE)
"""Last line of a block that starts a server, which does not end."""
_END = "\0"
_INTERPRETER = f"""
import ast, asyncio, json, sys
names, loop = {{"__name__": "__main__"}}, asyncio.new_event_loop()
for line in sys.stdin:
    awaited = eval(compile(json.loads(line), "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if awaited is not None:
        loop.run_until_complete(awaited)
    print({_END!r}, flush=True)
"""
"""Program that runs blocks of Python from its standard input with the same variables."""


class PageReader:
    """Shell, Python and servers of a reader. The port that pages name is replaced by a free one."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = str(probe.getsockname()[1])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        (folder / ".curlrc").write_text("fail-with-body\n")  # an answer with status 400 is a failure
        own = {"PATH": path, "LOPA_SERVE__PORT": self._port, "CURL_HOME": str(folder)}
        self._environment = {**os.environ, **own, **variables}
        self._python: subprocess.Popen[str] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._stop_server()
        if self._python is not None:
            self._python.communicate(timeout=60)

    def output_of(self, block: Block) -> str:
        """Run a block and return its standard output. A server goes on until the next one starts."""
        code = re.sub(r"(127\.0\.0\.1|localhost):8000\b", rf"\1:{self._port}", block.code)
        code = code.replace("-m http.server", f"-m http.server {self._port}")
        if block.language == "python":
            return self._python_output(code)
        if block.language == "js":
            (self._folder / "block.mjs").write_text(code, encoding="utf-8")
            code = "node block.mjs\n"
        server = _SERVER.search(code)
        output = self._shell_output(code if server is None else code[: server.start()])
        if server is not None:
            self._start_server(server[0])
        return output

    def _shell_output(self, code: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", code],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _python_output(self, code: str) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER],
                cwd=self._folder,
                env=self._environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(code) + "\n")
        self._python.stdin.flush()
        printed = ""
        for line in self._python.stdout:
            if line.endswith(f"{_END}\n"):
                return printed + line.removesuffix(f"{_END}\n")
            printed += line
        raise AssertionError(printed)

    def _start_server(self, command: str) -> None:
        self._stop_server()
        self._server = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self._folder, env=self._environment)
        until(self._answers)

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self._port}/ready", timeout=10).close()
        except urllib.error.HTTPError as error:
            return error.code == 404
        except OSError:
            return False
        return True

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.communicate(timeout=60)
