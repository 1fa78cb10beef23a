"""Real MPI jobs for tests: mpirun, what it prints and its exit code."""

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
_HANG = 120
"""Seconds after which a job counts as one that hangs; the longest takes a tenth of it."""

# The wheel of an MPI puts mpirun beside python; it goes with the library that mpi4py finds there.
MPIRUN = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
_MISSING = [
    name
    for name, there in (("mpi4py", importlib.util.find_spec("mpi4py") is not None), ("mpirun", MPIRUN is not None))
    if not there
]


def needs_mpi(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that starts MPI jobs; it says why it is skipped."""
    reason = f"no {' and no '.join(_MISSING)} here: pip install mpi4py mpich"
    return pytest.mark.mpi(pytest.mark.skipif(bool(_MISSING), reason=reason)(test))


def job(*groups: tuple[int, list[object]]) -> subprocess.CompletedProcess[str]:
    """Run a job of groups of ranks, each a number and the arguments of python; raises TimeoutExpired when it hangs."""
    assert MPIRUN is not None
    _remove_what_dead_jobs_left()
    command = [MPIRUN]
    for number, arguments in groups:
        command += [":"] if len(command) > 1 else []
        command += ["-n", str(number), sys.executable, *map(str, arguments)]
    # What Open MPI, but not MPICH, asks of a container with two cores and no other user than root.
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
        timeout=_HANG,
        check=False,
    )


def _remove_what_dead_jobs_left() -> None:
    """MPICH's shared memory outlives a job that is killed. A living job has long opened a file as old as these."""
    for path in Path("/dev/shm").glob("mpich_shm_*"):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another worker was faster; another user's
            if path.stat().st_mtime < time.time() - _HANG:
                path.unlink()
