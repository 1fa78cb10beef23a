"""Folder that all processes of a run share, for what the first of them makes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

VARIABLE = "LOPA_TEST_FOLDER"
"""Environment variable with the folder, for pytest processes that tests start."""


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder. Each pytest-xdist worker has its own base folder inside it."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time make `path`."""
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
