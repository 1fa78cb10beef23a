"""Committed rows on their way from the device that computed them to those that did not.

Knows threads of sessions and futures; when rows are sent, and what becomes of lost ones, is decided elsewhere.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial

from lopa.runtime.contract import CacheRows, WindowBatch
from lopa.runtime.parallel.session_thread import SessionThread
from lopa.runtime.sessions.session import LendingSession, Session


@dataclass(frozen=True, eq=False)
class RowTransfer:
    """One commit's rows. Started by `transfer_of_rows` or `transfer_of_lost_rows`."""

    batch: WindowBatch
    """The forward that makes them, of their request and branch alone, should a device have to compute them again."""
    count: int
    owner: SessionThread
    receivers: Sequence[SessionThread]
    read: Future[None]
    """The owner's part."""
    rows: Future[CacheRows]
    """What the receivers wait for, without limit: to be cancelled when the owner is lost."""

    @property
    def request(self) -> int:
        """Whose rows."""
        return self.batch.requests[0]


def transfer_of_rows(
    batch: WindowBatch, branch: int, count: int, owner: SessionThread, receivers: Sequence[SessionThread]
) -> RowTransfer:
    """Send the first `count` rows of the owner's `branch` in its last forward, of which `batch` is that branch alone.

    The owner commits them as well.
    """
    session, request = owner.session, batch.requests[0]
    read = partial(_rows_for, [receiver.session for receiver in receivers], session, request, branch, count)
    started = _started(batch, count, owner, receivers, read)
    owner.submit(partial(session.commit, request, branch, count))
    return started


def transfer_of_lost_rows(lost: RowTransfer, devices: Sequence[SessionThread]) -> RowTransfer:
    """Let the first of `devices` compute the rows of `lost` again, commit them and send them to the rest.

    These are receivers that never got the rows, so their prefix is still the one of that forward.
    """
    owner, *receivers = devices
    again = partial(_rows_computed_again, owner.session, lost.batch, lost.count)
    started = _started(lost.batch, lost.count, owner, receivers, again)
    owner.submit(partial(owner.session.commit, lost.request, 0, lost.count))
    return started


def _started(
    batch: WindowBatch,
    count: int,
    owner: SessionThread,
    receivers: Sequence[SessionThread],
    read: Callable[[], CacheRows],
) -> RowTransfer:
    rows: Future[CacheRows] = Future()
    done = owner.submit(partial(_hand_over, read, rows))
    for receiver in receivers:
        receiver.submit(partial(_append_when_there, receiver.session, batch.requests[0], rows))
    return RowTransfer(batch, count, owner, receivers, done, rows)


def _rows_for(receivers: Sequence[Session], owner: Session, request: int, branch: int, count: int) -> CacheRows:
    """The owner's rows: lent, where it does that, so that devices that reach each other copy them directly."""
    if isinstance(owner, LendingSession):
        return owner.lend_rows(request, branch, count, receivers)
    return owner.read_rows(request, branch, count)


def _hand_over(read: Callable[[], CacheRows], rows: Future[CacheRows]) -> None:
    found = read()
    if rows.set_running_or_notify_cancel():
        rows.set_result(found)


def _append_when_there(session: Session, request: int, rows: Future[CacheRows]) -> None:
    try:
        found = rows.result()
    except CancelledError:
        return  # not this device's fault; if the rows are still wanted they come another way
    session.append_rows(request, found)


def _rows_computed_again(session: Session, batch: WindowBatch, count: int) -> CacheRows:
    session.forward(batch)
    return session.read_rows(batch.requests[0], 0, count)
