"""The Session of rank 0 in an MPI job. It splits branches over the ranks, with one message and one reply per step.

Committed rows are sent only if a rank lacks them, while the host continues. Rank 0 appends them to its prefix before
its next operation.
"""

import time
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.batch_parts import part_of_branches, rows_are_shared, split_branches, statistics_of_parts
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.mpi.mpi_link import MpiLink, Transfer, rank_of_job, wait_for_ranks
from lopa.runtime.mpi.mpi_messages import (
    FIRST_CAPACITY,
    HELLO_SIZE,
    Bytes,
    Capacity,
    Commit,
    ForwardMessage,
    Free,
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
from lopa.runtime.sessions.session import KeepsOnHost, Session
from lopa.runtime.sessions.session import open_session as open_own_session
from lopa.runtime.sessions.tickets import Ticket, Tickets

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


class MpiSession(KeepsOnHost):
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
        self._tickets = Tickets[_Shares]()
        self._pending: list[Transfer] = []
        """Transfers to wait for."""
        self._incoming: _IncomingRows | None = None
        self._open = True
        self._check_hellos(hello_from_manifest(manifest))

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def start(self, batch: PackedBatch) -> Ticket:
        """Check and keep `batch`. Raises like Session.start."""
        self._check_open()
        return self._tickets.start(batch)

    def wait(self, ticket: Ticket) -> Statistics:
        """Run every window against its request's prefix.

        Raises like Session.wait. Raises MissingBackendError if a rank does not reply; the session is then closed.
        """
        self._check_open()
        batch = self._tickets.take(ticket)
        self._settle()
        shares = split_branches(int(batch.windows.max()), self._link.size)
        parts = {rank: part_of_branches(batch, share) for rank, share in enumerate(shares) if share.start < share.stop}
        own, *others = parts.values()
        for rank, part in list(parts.items())[1:]:
            self._send(rank, ForwardMessage(ticket.number, part.batch))
        self._settle()  # otherwise other ranks would get these messages only after our own forward
        answers = [
            np.empty(statistics_size(len(part.batch.sampled_rows), self._vocabulary), np.uint8) for part in others
        ]
        replies = [self._link.receive(answer, rank) for rank, answer in zip(list(parts)[1:], answers, strict=True)]
        began = time.perf_counter()
        try:
            own_ticket = self._own.start(own.batch)
            statistics = [self._own.wait(own_ticket)]
        except BaseException:
            self._send_all(Release(ticket.number))
            raise
        finally:  # even after an error, because a leftover reply would be taken for a reply to the next forward
            self._wait(replies, time.perf_counter() - began)
        for part, answer in zip(others, answers, strict=True):
            statistics.append(statistics_from_bytes(answer, len(part.batch.sampled_rows), self._vocabulary))
        self._tickets.keep(ticket, _Shares(shares, own_ticket))
        return statistics_of_parts(list(parts.values()), statistics)

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Append rows of a forward to the request's prefix on all ranks. Raises like Session.commit.

        The call returns before sent rows have arrived.
        """
        self._settle()
        shares, slot, owner, own_branch = self._locate_rows(ticket, request, branch, count)
        self._tickets.check_idle(request)
        on_all_ranks = all(share.start < min(share.stop, ticket.batch.windows[slot]) for share in shares.shares)
        everywhere = on_all_ranks and rows_are_shared(ticket.batch, slot, count)
        self._send_all(Commit(ticket.number, request, owner, own_branch, count, travels=not everywhere))
        if everywhere:
            self._own.commit(shares.own, request, 0, count)
        elif owner == 0:
            rows = self._own.read_rows(shares.own, request, own_branch, count)
            self._own.commit(shares.own, request, own_branch, count)
            self._pending.append(self._link.broadcast(bytes_from_rows(rows), 0))
        else:
            self._incoming = _IncomingRows(request, count, np.empty(rows_size(self._shape, count), np.uint8))
            self._pending.append(self._link.broadcast(self._incoming.memory, owner))

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return a copy of rows of a forward. Raises like `commit`."""
        self._settle()
        shares, _, owner, own_branch = self._locate_rows(ticket, request, branch, count)
        if owner == 0:
            return self._own.read_rows(shares.own, request, own_branch, count)
        memory = np.empty(rows_size(self._shape, count), np.uint8)
        self._send(owner, Read(ticket.number, request, own_branch, count))
        self._pending.append(self._link.receive(memory, owner))
        self._settle()
        return rows_from_bytes(memory, self._shape, count)

    def release(self, ticket: Ticket) -> None:
        """End the use of the forward's new rows on all ranks."""
        if self._open and ticket in self._tickets:
            self._own.release(self._tickets.rows(ticket).own)
            self._send_all(Release(ticket.number))
        self._tickets.release(ticket)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows of another session on all ranks. Raises ValueError if they do not match this bundle."""
        self._settle()
        self._tickets.check_idle(request)
        self._own.append_rows(request, rows)
        self._send_all(Commit(0, request, source=0, branch=0, count=rows.count, travels=True))
        self._pending.append(self._link.broadcast(bytes_from_rows(rows), 0))

    def free_rows(self) -> int | None:
        """Return the number of rows for which rank 0 has memory. Every rank has the same prefixes."""
        self._settle()
        return self._own.free_rows()

    def keep_rows(self, request: int, start: int, count: int) -> CacheRows:
        """Return a host copy of committed rows. Raises like Session.keep_rows, and RuntimeError if rank 0 does not keep
        rows on the host, since other ranks could not append them.
        """
        self._settle()
        kept = self._own.keep_rows(request, start, count)
        if not isinstance(kept, CacheRows):
            raise RuntimeError(f"{self._own.device} keeps rows in its own memory, which ranks of a job do not share")
        return kept

    def shorten(self, request: int, count: int) -> None:
        """Drop the request's committed rows after the first `count` on all ranks."""
        self._settle()
        self._tickets.check_idle(request)
        self._own.shorten(request, count)
        self._send_all(Shorten(request, count))

    def prefix_length(self, request: int) -> int:
        """Return the number of committed rows of the request, or 0 if it is unknown."""
        if self._open:
            self._settle()
        return self._own.prefix_length(request)

    def free(self, request: int) -> None:
        """Free the request's cache on all ranks. An unknown request is ignored."""
        if not self._open:
            return
        self._tickets.free(request)
        self._settle()
        self._send_all(Free(request))
        self._own.free(request)

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

    def _locate_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> tuple["_Shares", int, int, int]:
        """Return the shares of a forward, the request's index in it, the rank that computed `branch`, and the branch's
        number on that rank.
        """
        shares, slot = self._tickets.window(ticket, request, branch, count)
        owner = next(rank for rank, share in enumerate(shares.shares) if branch < share.stop)
        return shares, slot, owner, branch - shares.shares[owner].start

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

    def _check_open(self) -> None:
        if not self._open:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")

    def _settle(self) -> None:
        """Wait for all pending transfers, and append received rows."""
        self._check_open()
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


@dataclass(frozen=True, eq=False)
class _Shares:
    """Branches of a forward by rank, and the ticket of rank 0's own share."""

    shares: tuple[slice, ...]
    own: Ticket


@dataclass(frozen=True, eq=False)
class _IncomingRows:
    """Rows that a broadcast will deliver."""

    request: int
    count: int
    memory: Bytes
