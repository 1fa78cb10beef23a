"""One rank's connection to an MPI job, which sends and receives bytes, and waits without occupying a core.

mpi4py is imported only when a connection opens.
"""

import contextlib
import faulthandler
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lopa.runtime.device_families import FAMILIES, parse_device
from lopa.runtime.errors import BadInputError, LopaError, MissingBackendError
from lopa.runtime.mpi.mpi_messages import Bytes

_FLUSH_SECONDS = 0.3
"""Seconds for mpirun to forward a rank's last output, which it may drop after an abort."""
_START_SECONDS = 120.0
"""Seconds within which all ranks must start. MPI itself waits forever if a rank ends earlier."""
_MIN_SLEEP, _MAX_SLEEP = 20e-6, 5e-3
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Transfer:
    """A pending transfer of bytes."""

    request: Any
    """mpi4py Request, which keeps the memory alive until it is complete."""
    peer: str
    """Name of the awaited rank, for error texts."""


class MpiLink:
    """This process in an MPI job. Opening is collective: every rank of the job must do it once."""

    def __init__(self, device: str) -> None:
        """Join the job. `device` is "mpi" (every rank computes on CPUs) or "mpi:cuda".

        Raises BadInputError for another device and for a job of one rank. Raises MissingBackendError without mpi4py or
        MPI.
        """
        ranks_on = parse_device(device, "mpi").rest
        mpi = _mpi()
        self._comm = mpi.COMM_WORLD
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        if self.size < 2:
            raise BadInputError(
                f"device {device!r} in a job of one rank",
                expected="at least two ranks, started by mpirun of the MPI library that mpi4py uses: "
                + " ".join(mpi.Get_library_version().splitlines()[0].split()),
                remedy=f"run mpirun -n 2 lopa-export generate ... --device {device}, or use --device cpu",
            )
        machine = self._comm.Split_type(mpi.COMM_TYPE_SHARED)
        self._local_ranks: int = machine.size
        self._local_rank: int = machine.rank
        machine.Free()
        self._cuda = ranks_on == "cuda"

    @property
    def own_device(self) -> str:
        """Device of this rank's own session. The ranks of a machine take its CUDA devices in order."""
        return f"cuda:{self._local_rank}" if self._cuda else "cpu"

    def own_threads(self, threads: int | None) -> int | None:
        """Return `threads`, or this rank's share of the machine's cores if `threads` is None on CPUs."""
        if threads is not None or self._cuda:
            return threads
        return max(1, min(len(os.sched_getaffinity(0)), (os.cpu_count() or 1) // self._local_ranks))

    def send(self, data: Bytes, to: int) -> Transfer:
        """Start sending. `data` must not change until the transfer is complete."""
        return Transfer(self._comm.Isend(data, dest=to), f"rank {to}")

    def receive(self, into: Bytes, source: int) -> Transfer:
        """Start receiving up to the number of bytes in `into`."""
        return Transfer(self._comm.Irecv(into, source=source), f"rank {source}")

    def broadcast(self, data: Bytes, source: int) -> Transfer:
        """Start a broadcast of `data` from `source`. The other ranks pass memory of the same size."""
        peer = f"rank {source}" if source != self.rank else "a rank that receives rows"
        return Transfer(self._comm.Ibcast(data, root=source), peer)


def wait(transfer: Transfer) -> None:
    """Wait for the transfer without a time limit."""
    for _ in _pauses():
        if transfer.request.Test():
            return


def wait_for_ranks(transfers: Sequence[Transfer], seconds: float) -> None:
    """Wait for all transfers. Raises MissingBackendError with the late ranks after `seconds`."""
    for waited in _pauses():
        late = [transfer.peer for transfer in transfers if not transfer.request.Test()]
        if not late:
            return
        if waited > seconds:
            raise MissingBackendError(
                f"{', '.join(dict.fromkeys(late))} of the MPI job did not reply for {waited:.0f} seconds",
                expected=f"a reply within {seconds:.0f} seconds",
                remedy="check that rank's process, machine and network, then start again",
            )


def _pauses() -> Iterator[float]:
    """Yield the seconds waited so far, and sleep a tenth of that time after each. Both delay and CPU use stay small."""
    began = time.perf_counter()
    while True:
        waited = time.perf_counter() - began
        yield waited
        time.sleep(min(max(waited / 10, _MIN_SLEEP), _MAX_SLEEP))


@contextlib.contextmanager
def rank_of_job() -> Iterator[int]:
    """Yield this process's rank. An error in the block is printed with the rank, and aborts all ranks.

    Otherwise the others would wait forever. The exit code is the error's own code, or 70 for a bug. A job of one rank
    raises the error normally. Raises MissingBackendError without mpi4py or MPI.
    """
    comm = _mpi().COMM_WORLD
    try:
        yield comm.rank
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if comm.size == 1:
            raise
        where = f"rank {comm.rank} of {comm.size} on {socket.gethostname()}"
        code, text = _exit_from_error(error)
        _LOG.debug("the error of %s", where, exc_info=error)
        with contextlib.suppress(OSError):  # the reader of our output may have exited
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            print(f"error: {where}: {text}", file=sys.stderr, flush=True)
        time.sleep(_FLUSH_SECONDS)
        comm.Abort(code)
        os._exit(code)  # MPICH's Abort sometimes returns, but this process must not continue


def _exit_from_error(error: BaseException) -> tuple[int, str]:
    """Return exit code and text for the error that ended a rank, as on the command line."""
    if isinstance(error, LopaError):
        return error.exit_code, str(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0, "terminated"
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, BrokenPipeError):
        return 141, "the reader closed the output"
    if isinstance(error, OSError | MemoryError):
        return 2, f"{type(error).__name__}: {error}"
    return (
        70,
        f"unexpected {type(error).__name__}: {error}; a bug in lopa-export, see --verbose for details",
    )


def _mpi() -> Any:
    """Return mpi4py.MPI, which starts MPI on its first import."""
    # If a rank ends before MPI has started everywhere, the others hang in this import, which holds the interpreter.
    # Only a thread outside Python can end that import.
    faulthandler.dump_traceback_later(_START_SECONDS, exit=True)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is installed, but no MPI library
        raise MissingBackendError(
            f"cannot load mpi4py with an MPI library: {error}",
            expected="mpi4py with MPICH or Open MPI",
            remedy=FAMILIES["mpi"].ability.remedy(),
        ) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    return MPI
