"""The Session of rank 0 in an MPI job. It splits branches over the ranks, with one message and one reply per step.

Committed rows are sent only if a rank lacks them, while the host continues. Rank 0 appends them to its prefix before
its next operation.
"""

import time
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import rows_are_shared, split_branches
from lopa.runtime.contract.forward import check_batch
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.mpi.mpi_link import MpiLink, Transfer, rank_of_job, wait_for_ranks
from lopa.runtime.mpi.mpi_messages import (
    FIRST_CAPACITY,
    HELLO_SIZE,
    Bytes,
    Capacity,
    Commit,
    ForwardMessage,
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
"""Seconds to wait for the sessions of other ranks. They may load a large bundle over a network."""
_REPLY_SECONDS = 60.0
"""Seconds that a rank may take for any reply, in addition to the work itself."""
_SLOWDOWN = 20
"""Factor by which other ranks may compute longer than rank 0, if their device is slower or starting."""


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> Session:
    """Join the MPI job as rank 0, open its own session and wait for the others, which call lopa.runtime.mpi.mpi_server.

    `device` is as in MpiLink. Raises BadInputError for a job of one rank. In a larger job every error ends the job,
    also if a rank's bundle differs.
    """
    with rank_of_job():
        link = MpiLink(device)
        if link.rank:
            raise BadInputError(
                f"rank {link.rank} opened a session on device {device!r}",
                expected="a session on rank 0 only",
                remedy="use lopa-export generate, or call lopa.runtime.mpi.mpi_server.serve on all other ranks",
            )
        own = open_own_session(bundle, link.own_device, threads=link.own_threads(threads))
        return MpiSession(link, own, bundle.manifest, device)


class MpiSession:
    """Session over all ranks of a job. Rank 0 computes the first share of the branches itself."""

    def __init__(
        self, link: MpiLink, own: Session, manifest: Manifest, device: str, *, patience: float = _REPLY_SECONDS
    ) -> None:
        """Wait until every rank has opened its session. `own` is the session of this rank.

        `patience` is the number of seconds that a rank may take in addition to the work itself. Raises BadInputError if
        a rank has another bundle, and MissingBackendError if one does not start.
        """
        self._link, self._own, self._device, self._patience = link, own, device, patience
        self._shape = cache_shape_from_manifest(manifest)
        self._vocabulary = manifest.dimensions.vocab_size if manifest.with_logits else None
        self._others = range(1, link.size)
        self._capacity = FIRST_CAPACITY
        self._last: _LastForward | None = None
        self._pending: list[Transfer] = []
        """Transfers to wait for."""
        self._incoming: _IncomingRows | None = None
        self._open = True
        self._check_hellos(hello_from_manifest(manifest))

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run every window against its request's prefix.

        Raises ValueError for mismatched arrays. Raises MissingBackendError if a rank does not reply; the session is
        then closed.
        """
        check_batch(batch)
        self._settle()
        self._last = None
        shares = split_branches(batch.input_ids.shape[1], self._link.size)
        parts = [batch.part(branches=share) for share in shares]
        active = [rank for rank in self._others if parts[rank].input_ids.size]
        for rank in active:
            self._send(rank, ForwardMessage(parts[rank]))
        self._settle()  # otherwise other ranks would get these messages only after our own forward
        answers = {rank: np.empty(self._answer_size(parts[rank]), np.uint8) for rank in active}
        replies = [self._link.receive(answer, rank) for rank, answer in answers.items()]
        began = time.perf_counter()
        try:
            statistics = [self._own.forward(parts[0])]
        finally:  # even after an error, because a leftover reply would be taken for a reply to the next forward
            self._wait(replies, time.perf_counter() - began)
        for rank, answer in answers.items():
            statistics.append(statistics_from_bytes(answer, parts[rank].logits_index.shape, self._vocabulary))
        self._last = _LastForward(batch, shares)
        return Statistics.joined(statistics)

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix on all ranks.

        The call returns before sent rows have arrived. Raises RuntimeError if the last forward did not run the request,
        and ValueError for an invalid branch or count.
        """
        self._settle()
        last, slot, owner, own_branch = self._locate_rows(request, branch, count)
        everywhere = last.on_all_ranks and rows_are_shared(last.batch, slot, count)
        self._send_all(Commit(request, owner, own_branch, count, travels=not everywhere))
        if everywhere:
            self._own.commit(request, 0, count)
        elif owner == 0:
            rows = self._own.read_rows(request, own_branch, count)
            self._own.commit(request, own_branch, count)
            self._pending.append(self._link.broadcast(bytes_from_rows(rows), 0))
        else:
            self._incoming = _IncomingRows(request, count, np.empty(rows_size(self._shape, count), np.uint8))
            self._pending.append(self._link.broadcast(self._incoming.memory, owner))

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return a copy of the first `count` new rows of `branch` in the last forward. Raises like `commit`."""
        self._settle()
        _, _, owner, own_branch = self._locate_rows(request, branch, count)
        if owner == 0:
            return self._own.read_rows(request, own_branch, count)
        memory = np.empty(rows_size(self._shape, count), np.uint8)
        self._send(owner, Read(request, own_branch, count))
        self._pending.append(self._link.receive(memory, owner))
        self._settle()
        return rows_from_bytes(memory, self._shape, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows of another session on all ranks. Raises ValueError if they do not match this bundle."""
        self._settle()
        self._own.append_rows(request, rows)
        self._send_all(Commit(request, source=0, branch=0, count=rows.count, travels=True))
        self._pending.append(self._link.broadcast(bytes_from_rows(rows), 0))

    def shorten(self, request: int, count: int) -> None:
        """Drop the request's committed rows after the first `count` on all ranks."""
        self._settle()
        self._own.shorten(request, count)
        self._send_all(Shorten(request, count))

    def prefix_length(self, request: int) -> int:
        """Return the number of committed rows of the request, or 0 if it is unknown."""
        if self._open:
            self._settle()
        return self._own.prefix_length(request)

    def release(self, request: int) -> None:
        """Free the request's cache and new rows on all ranks. An unknown request is ignored."""
        if not self._open:
            return
        self._settle()
        self._send_all(Release(request))
        self._own.release(request)
        if self._last is not None and request in self._last.batch.requests:
            self._last = None

    def close(self) -> None:
        """Free all resources on all ranks and stop them. Closing twice is allowed."""
        if self._open:
            self._settle()
            self._send_all(Stop())
            self._settle()
        self._close_own()

    def _check_hellos(self, own: Bytes) -> None:
        hellos = {rank: np.empty(HELLO_SIZE, np.uint8) for rank in self._others}
        wait_for_ranks([self._link.receive(hello, rank) for rank, hello in hellos.items()], _OPENING_SECONDS)
        different = [rank for rank, hello in hellos.items() if not np.array_equal(hello, own)]
        if different:
            raise BadInputError(
                f"rank {', '.join(map(str, different))} of the MPI job has another bundle than rank 0",
                expected="the same manifest, and the same version of lopa-export, on every rank",
                remedy="copy the bundle of rank 0 to the other machines, or use a shared file system",
            )

    def _locate_rows(self, request: int, branch: int, count: int) -> tuple["_LastForward", int, int, int]:
        """Return the last forward, the request's index in it, the rank that computed `branch`, and the branch's number
        on that rank.
        """
        last = self._last
        slot = slot_of_rows(None if last is None else last.batch, request, branch, count)
        assert last is not None
        owner = next(rank for rank, share in enumerate(last.shares) if branch < share.stop)
        return last, slot, owner, branch - last.shares[owner].start

    def _answer_size(self, part: WindowBatch) -> int:
        requests, branches, queries = part.logits_index.shape
        return statistics_size((requests, branches, queries), self._vocabulary)

    def _send(self, rank: int, message: Message) -> None:
        """Start sending, after announcing a larger buffer if necessary."""
        data = bytes_from_message(message)
        if data.size > self._capacity:
            self._capacity = 1 << (data.size - 1).bit_length()
            self._send_all(Capacity(self._capacity))
        self._pending.append(self._link.send(data, rank))

    def _send_all(self, message: Message) -> None:
        for rank in self._others:
            self._send(rank, message)

    def _settle(self) -> None:
        """Wait for all pending transfers, and append received rows."""
        if not self._open:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")
        pending, self._pending = self._pending, []
        self._wait(pending)
        if self._incoming is not None:
            incoming, self._incoming = self._incoming, None
            rows = rows_from_bytes(incoming.memory, self._shape, incoming.count)
            self._own.append_rows(incoming.request, rows)

    def _wait(self, transfers: list[Transfer], work: float = 0.0) -> None:
        """Wait for `transfers`. `work` is the time in seconds that rank 0 needed for the same work."""
        try:
            wait_for_ranks(transfers, self._patience + _SLOWDOWN * work)
        except MissingBackendError:
            self._close_own()
            raise

    def _close_own(self) -> None:
        self._open = False
        self._own.close()


@dataclass(frozen=True)
class _LastForward:
    """Input of the last forward, and its branches by rank."""

    batch: WindowBatch
    shares: tuple[slice, ...]
    """Branches by rank."""

    @property
    def on_all_ranks(self) -> bool:
        """True if every rank computed a branch."""
        return all(share.start < share.stop for share in self.shares)


@dataclass(frozen=True, eq=False)
class _IncomingRows:
    """Rows that a broadcast will deliver."""

    request: int
    count: int
    memory: Bytes
