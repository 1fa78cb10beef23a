"""Transfers of committed rows from the device that computed them to the others.

Callers decide when rows are sent, and how lost rows are recovered.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial

from lopa.runtime.contract import CacheRows
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.device_worker import SessionThread
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket


@dataclass(frozen=True, eq=False)
class RowTransfer:
    """The rows of one commit. `transfer_of_rows` and `transfer_of_lost_rows` create it."""

    batch: PackedBatch
    """The forward of these rows, with their request and branch only, so that another device can recompute them."""
    count: int
    owner: SessionThread
    receivers: Sequence[SessionThread]
    read: Future[None]
    """Future of the owner's read."""
    rows: Future[CacheRows]
    """Rows that the receivers wait for, without a time limit. Cancel it when the owner is lost."""

    @property
    def request(self) -> int:
        """Request of the rows."""
        return self.batch.requests[0]


def transfer_of_rows(
    batch: PackedBatch,
    ticket: Ticket,
    branch: int,
    count: int,
    owner: SessionThread,
    receivers: Sequence[SessionThread],
) -> RowTransfer:
    """Send the first `count` rows of `branch` in the owner's forward `ticket`; `batch` is that branch alone.

    The owner commits them as well.
    """
    session, request = owner.session, batch.requests[0]
    read = partial(session.read_rows, ticket, request, branch, count)
    started = _start(batch, count, owner, receivers, read)
    owner.submit(partial(session.commit, ticket, request, branch, count))
    return started


def transfer_of_lost_rows(lost: RowTransfer, devices: Sequence[SessionThread]) -> RowTransfer:
    """Let the first of `devices` recompute the rows of `lost`, commit them and send them to the rest.

    These devices never received the rows, so their prefix is still the same as in that forward.
    """
    owner, *receivers = devices
    recompute = partial(_recomputed_rows, owner.session, lost.batch, lost.count)
    return _start(lost.batch, lost.count, owner, receivers, recompute)


def _start(
    batch: PackedBatch,
    count: int,
    owner: SessionThread,
    receivers: Sequence[SessionThread],
    read: Callable[[], CacheRows],
) -> RowTransfer:
    rows: Future[CacheRows] = Future()
    done = owner.submit(partial(_hand_over, read, rows))
    for receiver in receivers:
        receiver.submit(partial(_append_on_arrival, receiver.session, batch.requests[0], rows))
    return RowTransfer(batch, count, owner, receivers, done, rows)


def _hand_over(read: Callable[[], CacheRows], rows: Future[CacheRows]) -> None:
    found = read()
    if rows.set_running_or_notify_cancel():
        rows.set_result(found)


def _append_on_arrival(session: Session, request: int, rows: Future[CacheRows]) -> None:
    try:
        found = rows.result()
    except CancelledError:
        return  # the receiving device did not fail; if it needs the rows, another device sends them
    session.append_rows(request, found)


def _recomputed_rows(session: Session, batch: PackedBatch, count: int) -> CacheRows:
    """Return the rows of the only window of `batch`, which is computed and committed."""
    ticket, request = session.start(batch), batch.requests[0]
    session.wait(ticket)
    rows = session.read_rows(ticket, request, 0, count)
    session.commit(ticket, request, 0, count)
    session.release(ticket)
    return rows
