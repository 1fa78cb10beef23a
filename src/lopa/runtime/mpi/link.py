"""One rank's end of an MPI job: bytes to and from other ranks, waited for without burning the core that computes.

Imports mpi4py when a link is opened, not before. Knows ranks and bytes; not what the bytes mean.
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

from lopa.runtime.device_families import FAMILIES, parse_device, spans_processes
from lopa.runtime.errors import BadInputError, LopaError, MissingBackendError
from lopa.runtime.mpi.messages import Bytes

_FORWARD_SECONDS = 0.3
"""For mpirun to pass on what a rank printed last: once the job is aborted it may not."""
_START_SECONDS = 120.0
"""All ranks must have started by then. MPI itself waits for ever when one of them ends before that."""
_SHORTEST_SLEEP, _LONGEST_SLEEP = 20e-6, 5e-3
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Transfer:
    """Bytes under way."""

    request: Any
    """An mpi4py Request, which keeps the memory alive until it is done."""
    peer: str
    """Who is waited for, for people."""


class Link:
    """This process among those of the job. Opening one is collective: every rank of the job does it once."""

    def __init__(self, device: str) -> None:
        """Join the job. `device` is "mpi", every rank computing on the CPU, or "mpi:cuda".

        Raises BadInputError for another device and for a job of one rank, MissingBackendError without mpi4py or MPI.
        """
        ranks_on = parse_device(device, "mpi").rest
        mpi = _mpi()
        self._comm = mpi.COMM_WORLD
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        if self.size < 2:
            raise BadInputError(
                f"device {device!r} in a job of one rank",
                expected="at least two ranks, started by the mpirun of the MPI that mpi4py found, "
                + " ".join(mpi.Get_library_version().splitlines()[0].split()),
                remedy=f"mpirun -n 2 lopa-export generate ... --device {device}, or --device cpu for one process",
            )
        machine = self._comm.Split_type(mpi.COMM_TYPE_SHARED)
        self._ranks_here: int = machine.size
        self._number_here: int = machine.rank
        machine.Free()
        self._cuda = ranks_on == "cuda"

    @property
    def own_device(self) -> str:
        """The device of this rank's own session: the ranks of a machine take its CUDA devices in order."""
        return f"cuda:{self._number_here}" if self._cuda else "cpu"

    def own_threads(self, threads: int | None) -> int | None:
        """`threads`, or this rank's part of the machine's cores where its session would take all of them."""
        if threads is not None or self._cuda:
            return threads
        return max(1, min(len(os.sched_getaffinity(0)), (os.cpu_count() or 1) // self._ranks_here))

    def send(self, data: Bytes, to: int) -> Transfer:
        """Begin to send; `data` must not change until it is done."""
        return Transfer(self._comm.Isend(data, dest=to), f"rank {to}")

    def receive(self, into: Bytes, source: int) -> Transfer:
        """Begin to receive at most as many bytes as `into` has."""
        return Transfer(self._comm.Irecv(into, source=source), f"rank {source}")

    def broadcast(self, data: Bytes, source: int) -> Transfer:
        """Begin to send `data` from `source` to all others, which give memory of the same size."""
        peer = f"rank {source}" if source != self.rank else "a rank that receives rows"
        return Transfer(self._comm.Ibcast(data, root=source), peer)


def on_mpi(devices: Sequence[str]) -> bool:
    """Return True if these devices, as the user wrote them, are the ranks of an MPI job."""
    return len(devices) == 1 and spans_processes(devices[0])


def wait(transfer: Transfer) -> None:
    """Return when it is done, however long that takes."""
    for _ in _pauses():
        if transfer.request.Test():
            return


def wait_for_ranks(transfers: Sequence[Transfer], seconds: float) -> None:
    """Return when all are done. Raises MissingBackendError naming whom they wait for when some are not in time."""
    for waited in _pauses():
        late = [transfer.peer for transfer in transfers if not transfer.request.Test()]
        if not late:
            return
        if waited > seconds:
            raise MissingBackendError(
                f"{', '.join(dict.fromkeys(late))} of the MPI job did not answer for {waited:.0f} seconds",
                expected=f"an answer within {seconds:.0f} seconds",
                remedy="look at that rank's process, machine and network, then start again",
            )


def _pauses() -> Iterator[float]:
    """Seconds waited so far, each after a sleep of a tenth of them: little delay, and little of a core."""
    began = time.perf_counter()
    while True:
        waited = time.perf_counter() - began
        yield waited
        time.sleep(min(max(waited / 10, _SHORTEST_SLEEP), _LONGEST_SLEEP))


@contextlib.contextmanager
def rank_of_job() -> Iterator[int]:
    """This process's rank. An error inside is printed with the rank, and ends the processes of all ranks.

    Without that the others would wait for this one for ever. The exit code is that of the error, 70 for a bug. Raises
    MissingBackendError without mpi4py or MPI. A job of one rank has nobody to end: there an error is raised as
    everywhere else.
    """
    comm = _mpi().COMM_WORLD
    try:
        yield comm.rank
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if comm.size == 1:
            raise
        where = f"rank {comm.rank} of {comm.size} on {socket.gethostname()}"
        code, said = _end_from_error(error)
        _LOG.debug("the error of %s", where, exc_info=error)
        with contextlib.suppress(OSError):  # who reads our output may have gone
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            print(f"error: {where}: {said}", file=sys.stderr, flush=True)
        time.sleep(_FORWARD_SECONDS)
        comm.Abort(code)
        os._exit(code)  # MPICH's Abort sometimes returns, and nothing may run after it


def _end_from_error(error: BaseException) -> tuple[int, str]:
    """Exit code and words for what ended a rank; the codes are those of the command line."""
    if isinstance(error, LopaError):
        return error.exit_code, str(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0, "terminated"
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, BrokenPipeError):
        return 141, "who reads the output is gone"
    if isinstance(error, OSError | MemoryError):
        return 2, f"{type(error).__name__}: {error}"
    return 70, f"unexpected {type(error).__name__}: {error}; a bug of lopa-export, --verbose shows where it arose"


def _mpi() -> Any:
    """mpi4py.MPI, which starts MPI when it is first imported."""
    # A rank that ends before MPI has started on all leaves the others waiting inside this import, which holds the
    # interpreter: only a thread without Python can end that.
    faulthandler.dump_traceback_later(_START_SECONDS, exit=True)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, the MPI library is not
        raise MissingBackendError(
            f"mpi4py with an MPI library cannot be used here: {error}",
            expected="mpi4py, and MPICH or Open MPI",
            remedy=FAMILIES["mpi"].ability.remedy(),
        ) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    return MPI
