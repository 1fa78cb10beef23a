"""The Session of rank 0 in an MPI job: branches dealt over the ranks, one message to each and one back in a step.

Committed rows travel only where a rank lacks them, and while the host goes on; they are in the prefix before anything
else is asked. Does not know how bytes travel (lopa.runtime.mpi.link) nor how a rank computes.
"""

import time
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import rows_are_shared, shares_of_branches
from lopa.runtime.contract.forward import check_batch
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.mpi.link import Link, Transfer, rank_of_job, wait_for_ranks
from lopa.runtime.mpi.messages import (
    FIRST_CAPACITY,
    HELLO_SIZE,
    Bytes,
    Capacity,
    Commit,
    Forward,
    Message,
    Read,
    Release,
    Shorten,
    Stop,
    bytes_from_message,
    bytes_from_rows,
    hello_from_manifest,
    rows_from_bytes,
    rows_size,
    statistics_from_bytes,
    statistics_size,
)
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest
from lopa.runtime.sessions.session import Session, slot_of_rows
from lopa.runtime.sessions.session import open_session as open_own_session

_OPENING_SECONDS = 600.0
"""For the sessions of the others after rank 0's own: a large bundle may come over a network there."""
_PATIENCE = 60.0
"""Seconds that a rank may take for anything, beside the time of the work itself."""
_TIMES_OF_RANK_0 = 20
"""How much longer than rank 0 another may compute: its device may be slower, or just starting."""


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> Session:
    """Join the MPI job as rank 0, open its own session and wait for the others, which call lopa.runtime.mpi.server.

    `device` as lopa.runtime.mpi.link.Link takes it. Raises BadInputError for a job of one rank; in a larger one every
    error ends the job, that of a rank whose bundle differs as well.
    """
    with rank_of_job():
        link = Link(device)
        if link.rank:
            raise BadInputError(
                f"rank {link.rank} opened a session on device {device!r}",
                expected="rank 0 alone to do so",
                remedy="use lopa-export generate, or call lopa.runtime.mpi.server.serve on the other ranks",
            )
        own = open_own_session(bundle, link.own_device, threads=link.own_threads(threads))
        return MpiSession(link, own, bundle.manifest, device)


class MpiSession:
    """The Session protocol over all ranks of a job. This rank, 0, computes the first share of the branches itself."""

    def __init__(
        self, link: Link, own: Session, manifest: Manifest, device: str, *, patience: float = _PATIENCE
    ) -> None:
        """Wait until every rank has opened its own session; this one's is `own`.

        `patience` is the time in seconds that a rank may take beside that of the work itself. Raises BadInputError when
        a rank has another bundle, MissingBackendError when one does not come.
        """
        self._link, self._own, self._device, self._patience = link, own, device, patience
        self._shape = cache_shape_from_manifest(manifest)
        self._vocabulary = manifest.dimensions.vocab_size if manifest.with_logits else None
        self._others = range(1, link.size)
        self._capacity = FIRST_CAPACITY
        self._last: _LastForward | None = None
        self._begun: list[Transfer] = []
        """Not waited for yet."""
        self._arriving: _Arriving | None = None
        self._open = True
        self._check_hellos(hello_from_manifest(manifest))

    @property
    def device(self) -> str:
        """The device as the user named it."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run every window against its request's prefix. Raises ValueError when the arrays do not fit together.

        Raises MissingBackendError when a rank does not answer; the session is closed then.
        """
        check_batch(batch)
        self._settle()
        self._last = None
        shares = shares_of_branches(batch.input_ids.shape[1], self._link.size)
        parts = [batch.part(branches=share) for share in shares]
        asked = [rank for rank in self._others if parts[rank].input_ids.size]
        for rank in asked:
            self._tell(rank, Forward(parts[rank]))
        self._settle()  # what is not fetched now would lie there until our own forward is done
        answers = {rank: np.empty(self._answer_size(parts[rank]), np.uint8) for rank in asked}
        arrivals = [self._link.receive(answer, rank) for rank, answer in answers.items()]
        began = time.perf_counter()
        try:
            statistics = [self._own.forward(parts[0])]
        finally:  # also after an error: no answer stays behind that a later question would take for its own
            self._wait(arrivals, time.perf_counter() - began)
        for rank, answer in answers.items():
            statistics.append(statistics_from_bytes(answer, parts[rank].logits_index.shape, self._vocabulary))
        self._last = _LastForward(batch, shares)
        return Statistics.joined(statistics)

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix on all ranks.

        Returns before rows that travel have arrived. Raises RuntimeError when the last forward did not run the request,
        ValueError for a branch or a count that it does not have.
        """
        self._settle()
        last, slot, owner, own_branch = self._rows_of(request, branch, count)
        everywhere = last.on_all_ranks and rows_are_shared(last.batch, slot, count)
        self._tell_all(Commit(request, owner, own_branch, count, travels=not everywhere))
        if everywhere:
            self._own.commit(request, 0, count)
        elif owner == 0:
            rows = self._own.read_rows(request, own_branch, count)
            self._own.commit(request, own_branch, count)
            self._begun.append(self._link.broadcast(bytes_from_rows(rows), 0))
        else:
            self._arriving = _Arriving(request, count, np.empty(rows_size(self._shape, count), np.uint8))
            self._begun.append(self._link.broadcast(self._arriving.memory, owner))

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """A copy of the first `count` new rows of `branch` in the last forward; errors as for `commit`."""
        self._settle()
        _, _, owner, own_branch = self._rows_of(request, branch, count)
        if owner == 0:
            return self._own.read_rows(request, own_branch, count)
        memory = np.empty(rows_size(self._shape, count), np.uint8)
        self._tell(owner, Read(request, own_branch, count))
        self._begun.append(self._link.receive(memory, owner))
        self._settle()
        return rows_from_bytes(memory, self._shape, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows of another session on all ranks. Raises ValueError when they do not fit this bundle."""
        self._settle()
        self._own.append_rows(request, rows)
        self._tell_all(Commit(request, source=0, branch=0, count=rows.count, travels=True))
        self._begun.append(self._link.broadcast(bytes_from_rows(rows), 0))

    def shorten(self, request: int, count: int) -> None:
        """Session.shorten on all ranks."""
        self._settle()
        self._own.shorten(request, count)
        self._tell_all(Shorten(request, count))

    def prefix_length(self, request: int) -> int:
        """Committed rows of the request, 0 for an unknown one."""
        if self._open:
            self._settle()
        return self._own.prefix_length(request)

    def release(self, request: int) -> None:
        """Forget the request, its cache and its new rows on all ranks; an unknown one is no error."""
        if not self._open:
            return
        self._settle()
        self._tell_all(Release(request))
        self._own.release(request)
        if self._last is not None and request in self._last.batch.requests:
            self._last = None

    def close(self) -> None:
        """Free everything on all ranks and end their service; closing twice is no error."""
        if self._open:
            self._settle()
            self._tell_all(Stop())
            self._settle()
        self._give_up()

    def _check_hellos(self, own: Bytes) -> None:
        hellos = {rank: np.empty(HELLO_SIZE, np.uint8) for rank in self._others}
        wait_for_ranks([self._link.receive(hello, rank) for rank, hello in hellos.items()], _OPENING_SECONDS)
        different = [rank for rank, hello in hellos.items() if not np.array_equal(hello, own)]
        if different:
            raise BadInputError(
                f"rank {', '.join(map(str, different))} of the MPI job has another bundle than rank 0",
                expected="the same manifest, and the same version of lopa-export, on every rank",
                remedy="copy the bundle of rank 0 to the other machines, or name one that all of them see",
            )

    def _rows_of(self, request: int, branch: int, count: int) -> tuple["_LastForward", int, int, int]:
        """The last forward, the request's place in it, the rank that computed `branch`, and its number there."""
        last = self._last
        slot = slot_of_rows(None if last is None else last.batch, request, branch, count)
        assert last is not None
        owner = next(rank for rank, share in enumerate(last.shares) if branch < share.stop)
        return last, slot, owner, branch - last.shares[owner].start

    def _answer_size(self, part: WindowBatch) -> int:
        requests, branches, queries = part.logits_index.shape
        return statistics_size((requests, branches, queries), self._vocabulary)

    def _tell(self, rank: int, message: Message) -> None:
        """Begin to send; a serving rank's buffer that is too small is made larger before."""
        data = bytes_from_message(message)
        if data.size > self._capacity:
            self._capacity = 1 << (data.size - 1).bit_length()
            self._tell_all(Capacity(self._capacity))
        self._begun.append(self._link.send(data, rank))

    def _tell_all(self, message: Message) -> None:
        for rank in self._others:
            self._tell(rank, message)

    def _settle(self) -> None:
        """Wait for all that was begun, and append the rows that have arrived."""
        if not self._open:
            raise RuntimeError(f"the session on {self._device} was used after close(); expected an open session")
        begun, self._begun = self._begun, []
        self._wait(begun)
        if self._arriving is not None:
            arrived, self._arriving = self._arriving, None
            rows = rows_from_bytes(arrived.memory, self._shape, arrived.count)
            self._own.append_rows(arrived.request, rows)

    def _wait(self, transfers: list[Transfer], work: float = 0.0) -> None:
        """`work` is what rank 0 needed, in seconds, for what it waits for the others to do."""
        try:
            wait_for_ranks(transfers, self._patience + _TIMES_OF_RANK_0 * work)
        except MissingBackendError:
            self._give_up()
            raise

    def _give_up(self) -> None:
        self._open = False
        self._own.close()


@dataclass(frozen=True)
class _LastForward:
    """Which rank computed which branches of it."""

    batch: WindowBatch
    shares: tuple[slice, ...]
    """By rank."""

    @property
    def on_all_ranks(self) -> bool:
        """Whether every rank computed a branch."""
        return all(share.start < share.stop for share in self.shares)


@dataclass(frozen=True, eq=False)
class _Arriving:
    """Rows that a broadcast brings."""

    request: int
    count: int
    memory: Bytes
