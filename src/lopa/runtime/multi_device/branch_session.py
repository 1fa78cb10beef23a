"""A session over several devices, which compute different branches of each forward at the same time.

It follows LoPA-Dist's two phases (docs/reference/algorithm.md, section 10). In a forward every device computes its
branches and keeps their new rows. In a commit the winner's rows are sent from their device to the others, which append
them. The next forward of a device queues behind its append, so the transfer overlaps with the caller's work. If the
rows are equal on every branch (lopa.runtime.contract.batch_parts), each device commits its own rows, and nothing is
sent.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from lopa.runtime.contract import CacheRows, DeviceTime, ForwardSplit, Statistics
from lopa.runtime.contract.batch_parts import (
    part_of_branches,
    part_of_windows,
    rows_are_shared,
    split_branches,
    statistics_of_parts,
)
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.errors import BadInputError, DevicesLostError
from lopa.runtime.multi_device.row_transfer import RowTransfer, transfer_of_lost_rows, transfer_of_rows
from lopa.runtime.sessions.device_worker import SessionThread
from lopa.runtime.sessions.session import KeptRows, Session, check_kept_rows, check_prefix_count
from lopa.runtime.sessions.tickets import Ticket, Tickets, window_of_branch

STALL_SECONDS = 60.0
"""Seconds of one forward after which a device is abandoned."""

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LostDevice:
    """A device that failed and is no longer used."""

    device: str
    reason: str


class BranchParallelSession:
    """A session over other sessions, which it owns. Each runs on its own thread.

    A device that raises, or exceeds `stall_seconds`, is abandoned: it appears in `lost`, a warning is logged, and the
    other devices compute its share. ValueError and BadInputError of a forward are the caller's errors, not the
    device's. The thread of a device with core numbers ("cpu:0-1") is bound to these cores.

    Methods raise DevicesLostError when no device is left, and otherwise the errors of the Session protocol.
    """

    rows_per_forward = None

    def __init__(self, sessions: Sequence[Session], *, stall_seconds: float = STALL_SECONDS) -> None:
        """Start a thread for each of `sessions`, which this object then owns. Raises ValueError without any session, or
        for a limit that is not positive.
        """
        if not sessions or not stall_seconds > 0:
            raise ValueError(f"received {len(sessions)} sessions and {stall_seconds} seconds, both must be positive")
        self._has_limit = any(session.free_rows() is not None for session in sessions)
        """True if the memory of some device limits the number of rows."""
        self._devices = [SessionThread(session) for session in sessions]
        """Devices in use."""
        self._name = ",".join(device.session.device for device in self._devices)
        self._stall_seconds = stall_seconds
        self._lost: list[LostDevice] = []
        self._lengths: dict[int, int] = {}
        self._tickets = Tickets[_Shares]()
        self._transfers: list[RowTransfer] = []
        """Transfers that may not have ended."""
        self._closed = False

    @property
    def device(self) -> str:
        """Device names as the user wrote them, joined by commas."""
        return self._name

    @property
    def lost(self) -> tuple[LostDevice, ...]:
        """Failed devices, in order."""
        return tuple(self._lost)

    def start(self, batch: PackedBatch) -> Ticket:
        """Check and keep `batch`. Raises like Session.start."""
        self._check_usable()
        return self._tickets.start(batch)

    def wait(self, ticket: Ticket) -> Statistics:
        """Compute all branches. The devices compute their shares at the same time. Raises ValueError as every session
        does.

        If devices fail, the branches are distributed again over the remaining ones.
        """
        self._check_usable()
        batch = self._tickets.take(ticket)
        began = time.perf_counter()
        self._finish_transfers()
        branches = int(batch.windows.max())
        results: list[_ShareResult] | None = None
        while results is None:
            slices = split_branches(branches, len(self._devices))
            shares = [(device, share) for device, share in zip(self._devices, slices, strict=True)]
            parts = {device: part_of_branches(batch, share) for device, share in shares if share.start < share.stop}
            results = self._results(
                {device: partial(_compute_share, device.session, part.batch) for device, part in parts.items()}
            )
        tickets = {device: result.ticket for device, result in zip(parts, results, strict=True)}
        self._tickets.keep(ticket, _Shares(shares, tickets, set()))
        statistics = statistics_of_parts(list(parts.values()), [result.statistics for result in results])
        times = tuple(result.time for result in results)
        gather = time.perf_counter() - began - max(each.seconds for each in times)
        return replace(statistics, split=ForwardSplit(times, gather))

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Append the rows on every device. The call returns at once; devices append before their next forward.

        Raises like Session.commit. The next forward detects a device that fails here, and recovers its work.
        """
        self._check_usable()
        if any(transfer.request == request for transfer in self._transfers):
            self._finish_transfers()  # rows of one request arrive in the order of their commits
        shares, slot, owner, local = self._owner(ticket, request, branch, count)
        self._tickets.check_idle(request)
        if request in shares.changed:  # no device could recompute these rows if a transfer failed
            self.append_rows(request, self.read_rows(ticket, request, branch, count))
            return
        shared = rows_are_shared(ticket.batch, slot, count)
        receivers = []
        for device, share in shares.shares:
            if device is owner or device not in self._devices:
                continue
            if shared and share.start < min(share.stop, ticket.batch.windows[slot]):
                device.submit(partial(device.session.commit, shares.tickets[device], request, 0, count))
            else:
                receivers.append(device)
        own = shares.tickets[owner]
        if receivers:
            alone = np.arange(len(ticket.batch.slots)) == window_of_branch(ticket.batch, slot, branch)
            computed = part_of_windows(ticket.batch, alone).batch
            self._transfers.append(transfer_of_rows(computed, own, local, count, owner, receivers))
        else:
            owner.submit(partial(owner.session.commit, own, request, local, count))
        self._change(request, self.prefix_length(request) + count)

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return a copy of the rows, from the device that computed them. Raises like Session.read_rows.

        Raises RuntimeError if that device fails, since the rows are then lost. Another forward computes them again.
        """
        self._check_usable()
        self._finish_transfers()
        shares, _, owner, local = self._owner(ticket, request, branch, count)
        found = self._results({owner: partial(owner.session.read_rows, shares.tickets[owner], request, local, count)})
        if found is None:
            raise _lost_rows(owner)
        return found[0]

    def release(self, ticket: Ticket) -> None:
        """End the use of the forward's new rows, on every device."""
        if ticket in self._tickets:
            for device, own in self._tickets.rows(ticket).tickets.items():
                if device in self._devices:
                    device.submit(partial(device.session.release, own))
        self._tickets.release(ticket)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows of another session, on every device. Raises ValueError if they do not fit."""
        self._check_usable()
        self._tickets.check_idle(request)
        self._finish_transfers()
        self._results({device: partial(device.session.append_rows, request, rows) for device in self._devices})
        self._change(request, self.prefix_length(request) + rows.count)

    def free_rows(self) -> int | None:
        """Return the number of rows for which every device has memory, or None without a limit."""
        if not self._has_limit:
            return None
        self._check_usable()
        self._finish_transfers()
        found = None
        while found is None:
            found = self._results({device: device.session.free_rows for device in self._devices})
        return min((rows for rows in found if rows is not None), default=None)

    def keep_rows(self, request: int, start: int, count: int) -> KeptRows:
        """Keep the rows on every device, before its next forward. Raises like Session.keep_rows."""
        self._check_usable()
        self._finish_transfers()
        check_kept_rows(self.prefix_length(request), start, count)
        work = {device: partial(device.session.keep_rows, request, start, count) for device in self._devices}
        return _KeptRows(count, {device: device.submit(call) for device, call in work.items()})

    def append_kept(self, request: int, rows: Sequence[KeptRows]) -> None:
        """Append each device's own kept rows, before its next forward. Raises like Session.append_kept."""
        self._check_usable()
        self._tickets.check_idle(request)
        self._finish_transfers()
        kept = cast("Sequence[_KeptRows]", rows)
        for device in self._devices:
            device.submit(partial(_append_kept, device.session, request, [each.parts[device] for each in kept]))
        self._change(request, self.prefix_length(request) + sum(each.count for each in kept))

    def shorten(self, request: int, count: int) -> None:
        """Shorten the prefix on every device. This returns at once; devices shorten it before their next forward."""
        self._check_usable()
        self._tickets.check_idle(request)
        check_prefix_count(self.prefix_length(request), count)
        if count == self.prefix_length(request):
            return
        self._finish_transfers()  # lost rows are recomputed over the unshortened prefix
        for device in self._devices:
            device.submit(partial(device.session.shorten, request, count))
        self._change(request, count)

    def prefix_length(self, request: int) -> int:
        """Return the committed rows of the request, 0 for an unknown one."""
        return self._lengths.get(request, 0)

    def free(self, request: int) -> None:
        """Drop the request. Devices free its caches before their next forward."""
        self._tickets.free(request)
        for transfer in self._transfers:
            if transfer.request == request:
                transfer.rows.cancel()
        self._transfers = [transfer for transfer in self._transfers if transfer.request != request]
        self._lengths.pop(request, None)
        for device in self._devices:
            device.submit(partial(device.session.free, request))

    def close(self) -> None:
        """Close every session. One that hangs or fails is abandoned. Closing twice is allowed."""
        self._closed = True
        for transfer in self._transfers:
            transfer.rows.cancel()
        devices, self._devices = self._devices, []  # at once, as a thread that was stopped answers no second close()
        wait([device.close() for device in devices], timeout=self._stall_seconds)
        self._transfers.clear()
        self._lengths.clear()
        self._tickets.clear()

    def _check_usable(self) -> None:
        if self._closed:
            raise RuntimeError(f"the session on {self._name} was used after close(); expected an open session")
        if not self._devices:
            raise self._no_device_left()

    def _no_device_left(self) -> DevicesLostError:
        return DevicesLostError(
            "no device is left: " + "; ".join(f"{lost.device}: {lost.reason}" for lost in self._lost),
            expected="at least one working device",
            remedy="check the devices with lopa-export doctor; if they are slow, raise --device-timeout",
        )

    def _change(self, request: int, length: int) -> None:
        """Note the new length of a prefix. Forwards before cannot be computed again."""
        self._lengths[request] = length
        for shares in self._tickets:
            shares.changed.add(request)

    def _owner(
        self, ticket: Ticket, request: int, branch: int, count: int
    ) -> tuple["_Shares", int, SessionThread, int]:
        """Return the shares of a forward, the request's index in it, the device that computed `branch`, and the number
        of `branch` there. Raises RuntimeError if that device was lost.
        """
        shares, slot = self._tickets.window(ticket, request, branch, count)
        owner, share = next((device, share) for device, share in shares.shares if share.start <= branch < share.stop)
        if owner not in self._devices:
            raise _lost_rows(owner)
        return shares, slot, owner, branch - share.start

    def _results(self, calls: Mapping[SessionThread, Callable[[], T]]) -> list[T] | None:
        """Return the results of the devices' calls, or None if one of these devices was lost.

        The call waits for all devices and their earlier work. A device that failed in earlier work is lost too. Call it
        after `_finish_transfers`, so that no device waits for rows of another. Raises ValueError and BadInputError of a
        call.
        """
        futures = {device: device.submit(partial(_result_or_caller_error, call)) for device, call in calls.items()}
        jobs = {device: device.take_jobs() for device in self._devices}
        wait([job for each in jobs.values() for job in each], timeout=self._stall_seconds)
        for device, each in jobs.items():
            faults = [fault for fault in map(self._fault, each) if fault is not None]
            if faults:
                self._lose(device, faults[0])
        if any(device not in self._devices for device in calls):
            return None
        results = []
        for future in futures.values():
            result = future.result()
            if isinstance(result, _CallerError):
                raise result.error
            results.append(result)
        return results

    def _fault(self, job: Future[Any]) -> str | None:
        """Return why a device is abandoned, or None if the job succeeded."""
        if not job.done():
            return f"no answer within {self._stall_seconds:g} seconds"
        error = job.exception()
        return None if error is None else f"{type(error).__name__}: {error}"

    def _lose(self, device: SessionThread, reason: str) -> None:
        """Stop using `device`. Raises DevicesLostError if it was the last."""
        if device not in self._devices:
            return
        self._devices.remove(device)
        device.close()  # takes effect when its current work ends, if it ever does
        self._lost.append(LostDevice(device.session.device, reason))
        if not self._devices:
            raise self._no_device_left()
        _LOG.warning("device %s failed, the other devices continue: %s", device.session.device, reason)

    def _finish_transfers(self) -> None:
        """Wait for all transfers. Rows of a lost device are recomputed by another."""
        while self._transfers:
            transfer = self._transfers.pop(0)
            wait([transfer.read], timeout=self._stall_seconds if transfer.owner in self._devices else 0)
            if transfer.rows.done() or not transfer.rows.cancel():
                continue
            self._lose(transfer.owner, self._fault(transfer.read) or "its rows did not arrive")
            left = [device for device in transfer.receivers if device in self._devices]
            if left:
                self._transfers.append(transfer_of_lost_rows(transfer, left))


@dataclass(frozen=True, eq=False)
class _KeptRows:
    count: int
    parts: dict[SessionThread, Future[KeptRows]]
    """Rows of each device."""


def _append_kept(session: Session, request: int, parts: Sequence[Future[KeptRows]]) -> None:
    session.append_kept(request, [part.result() for part in parts])


@dataclass(frozen=True, eq=False)
class _Shares:
    """The devices of a forward, each with its branches and its own ticket."""

    shares: list[tuple[SessionThread, slice]]
    tickets: dict[SessionThread, Ticket]
    """Tickets of the devices that computed a branch."""
    changed: set[int]
    """Requests whose prefix changed since the forward."""


@dataclass(frozen=True, eq=False)
class _ShareResult:
    ticket: Ticket
    statistics: Statistics
    time: DeviceTime


@dataclass(frozen=True, eq=False)
class _CallerError:
    error: Exception


def _compute_share(session: Session, part: PackedBatch) -> _ShareResult:
    """Compute one device's share of a forward, on its thread."""
    began = time.perf_counter()
    ticket = session.start(part)
    statistics = session.wait(ticket)
    seconds = time.perf_counter() - began
    if statistics.topk_ids.shape[:1] != part.sampled_rows.shape:
        raise RuntimeError(f"returned statistics {statistics.topk_ids.shape} for rows {part.sampled_rows.shape}")
    return _ShareResult(ticket, statistics, DeviceTime(session.device, int(part.windows.max()), seconds))


def _lost_rows(device: SessionThread) -> RuntimeError:
    return RuntimeError(f"the rows were lost with device {device.session.device}; run the forward again")


def _result_or_caller_error(call: Callable[[], T]) -> T | _CallerError:
    """Return the result of `call`. Return, not raise, an error that every device would raise for this call."""
    try:
        return call()
    except (ValueError, BadInputError) as error:
        return _CallerError(error)
