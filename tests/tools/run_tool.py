"""Run a program of tools/ like a developer."""

import os
import subprocess
import sys

from tests.python_path import python_path


def run_tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `python -m tools.NAME` with `arguments`."""
    return subprocess.run(
        [sys.executable, "-m", f"tools.{name}", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
