"""The interpreters of a machine, one for each version of Python that the project says it runs on."""

import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ASKED = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


@dataclass(frozen=True)
class Interpreter:
    """A version that is promised, and a program of it if there is one."""

    promised: str
    """e.g. 3.12"""
    program: Path | None
    version: str = ""
    """e.g. 3.12.1"""


def promised_versions(pyproject: Path) -> list[str]:
    """From the classifiers: 3.11, 3.12 and so on."""
    classifiers = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]["classifiers"]
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in classifiers)
    return [match[1] for match in found if match]


def interpreter_here(promised: str) -> Interpreter:
    """The first that runs: on PATH, then among pyenv's. A name of pyenv's may be there for a version that is not."""
    for program in _candidates(promised):
        try:
            done = subprocess.run([program, "-c", _ASKED], capture_output=True, text=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = done.stdout.strip()
        if done.returncode == 0 and version.startswith(f"{promised}."):
            return Interpreter(promised, program, version)
    return Interpreter(promised, None)


def _candidates(promised: str) -> Iterator[Path]:
    if found := shutil.which(f"python{promised}"):
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted((root / "versions").glob(f"{promised}.*/bin/python{promised}"), reverse=True)
