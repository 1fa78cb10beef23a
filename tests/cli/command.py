"""lopa-export as a user runs it: a process, its streams and its exit code."""

import json
import subprocess
import sys

from lopa import tiny

PROMPT = json.loads(tiny.EVAL.read_text(encoding="utf-8").splitlines()[0])["prompt"]
BROKEN_DEVICES = """
import sys
from lopa.cli.main import main
from lopa.runtime.sessions.host_session import HostSession

class Broken(HostSession):
    "A test stand-in: the devices in the first argument fail in their third forward."
    forwards = 0
    def forward(self, batch):
        self.forwards += 1
        if self.forwards == 3 and self.device in sys.argv[1]:
            raise OSError("the fan stopped")
        return super().forward(batch)

from lopa.runtime.sessions import numpy_session, onnxruntime_session
numpy_session.HostSession = onnxruntime_session.HostSession = Broken
main(sys.argv[2:])
"""
"""A program: the command in the arguments behind the first, which names the devices that break."""


def lopa_export(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lopa.cli.main", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
