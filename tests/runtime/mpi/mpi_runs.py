"""Real MPI jobs for tests: mpirun, its output and its exit code."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
_TIMEOUT = 120
"""Seconds after which a job counts as hung. The longest takes a tenth of it."""

# The wheel of an MPI installs mpirun next to python, matching the library that mpi4py finds there.
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
_MISSING = [
    name
    for name, found in (("mpi4py", importlib.util.find_spec("mpi4py") is not None), ("mpirun", MPIRUN is not None))
    if not found
]


def needs_mpi(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts MPI jobs, and skip it with a reason if MPI is missing."""
    reason = f"needs {' and '.join(_MISSING)}: pip install mpi4py mpich"
    return pytest.mark.mpi(pytest.mark.skipif(bool(_MISSING), reason=reason)(test))


def job(*groups: tuple[int, list[object]]) -> subprocess.CompletedProcess[str]:
    """Run a job of groups of ranks, each a number and python's arguments. Raises TimeoutExpired if it hangs."""
    assert MPIRUN is not None
    _remove_stale_shared_memory()
    command = [MPIRUN]
    for number, arguments in groups:
        command += [":"] if len(command) > 1 else []
        command += ["-n", str(number), sys.executable, *map(str, arguments)]
    # Open MPI, but not MPICH, needs these in a container with two cores and only root.
    open_mpi = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    return subprocess.run(
        command,
        env={**os.environ, **open_mpi},
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )


def _remove_stale_shared_memory() -> None:
    """Remove MPICH's shared memory of killed jobs. A running job has opened files of this age long ago."""
    for path in Path("/dev/shm").glob("mpich_shm_*"):
        with contextlib.suppress(
            FileNotFoundError, PermissionError
        ):  # removed by another worker, or owned by another user
            if path.stat().st_mtime < time.time() - _TIMEOUT:
                path.unlink()
