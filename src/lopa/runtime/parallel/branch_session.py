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
from typing import Any, TypeVar

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import rows_are_shared, split_branches
from lopa.runtime.contract.forward import DeviceTime, ForwardSplit, check_batch
from lopa.runtime.errors import BadInputError, DevicesLostError
from lopa.runtime.parallel.row_transfer import RowTransfer, transfer_of_lost_rows, transfer_of_rows
from lopa.runtime.parallel.session_thread import SessionThread
from lopa.runtime.sessions.session import LendingSession, Session, check_prefix_count, slot_of_rows

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

    def __init__(self, sessions: Sequence[Session], *, stall_seconds: float = STALL_SECONDS) -> None:
        """Start a thread for each of `sessions`, which this object then owns. Raises ValueError without any session, or
        for a limit that is not positive.
        """
        if not sessions or not stall_seconds > 0:
            raise ValueError(f"received {len(sessions)} sessions and {stall_seconds} seconds, both must be positive")
        self._devices = [SessionThread(session) for session in sessions]
        """Devices in use."""
        for device in self._devices:
            if isinstance(device.session, LendingSession):
                others = [each.session for each in self._devices if each is not device]
                device.submit(partial(device.session.meet, others))
        self._name = ",".join(device.session.device for device in self._devices)
        self._stall_seconds = stall_seconds
        self._lost: list[LostDevice] = []
        self._lengths: dict[int, int] = {}
        self._last: _LastForward | None = None
        self._shortened: set[int] = set()
        """Requests whose prefix was shortened since the last forward."""
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

    def forward(self, batch: WindowBatch) -> Statistics:
        """Compute all branches. The devices compute their shares at the same time. Raises ValueError as every session
        does.

        If devices fail, the branches are distributed again over the remaining ones. A session can only commit rows of
        its last forward, so every device has to take part in the same forward.
        """
        self._check_usable()
        check_batch(batch)
        began = time.perf_counter()
        self._finish_transfers()
        self._last = None
        self._shortened.clear()
        results: list[_ShareResult] | None = None
        while results is None:
            slices = split_branches(batch.input_ids.shape[1], len(self._devices))
            shares = [(device, share) for device, share in zip(self._devices, slices, strict=True)]
            results = self._results(
                {
                    device: partial(_compute_share, device.session, batch.part(branches=share))
                    for device, share in shares
                    if share.start < share.stop
                }
            )
        self._last = _LastForward(batch, shares)
        statistics = Statistics.joined([result.statistics for result in results])
        times = tuple(result.time for result in results)
        gather = time.perf_counter() - began - max(each.seconds for each in times)
        return replace(statistics, split=ForwardSplit(times, gather))

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the rows on every device. The call returns at once; devices append before their next forward.

        Raises as HostSession.commit does. The next forward detects a device that fails here, and recovers its work.
        """
        self._check_usable()
        if request in self._shortened:  # no device could recompute these rows if a transfer failed
            self.append_rows(request, self.read_rows(request, branch, count))
            return
        if any(transfer.request == request for transfer in self._transfers):
            self._finish_transfers()  # rows of one request arrive in the order of their commits
        last, slot, owner, local = self._owner(request, branch, count)
        shared = rows_are_shared(last.batch, slot, count)
        receivers = []
        for device, share in last.shares:
            if device is owner or device not in self._devices:
                continue
            if shared and share.start < share.stop:
                device.submit(partial(device.session.commit, request, 0, count))
            else:
                receivers.append(device)
        if receivers:
            alone = last.batch.part(slice(slot, slot + 1), slice(branch, branch + 1))
            self._transfers.append(transfer_of_rows(alone, local, count, owner, receivers))
        else:
            owner.submit(partial(owner.session.commit, request, local, count))
        self._lengths[request] = self.prefix_length(request) + count

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return a copy of the rows, from the device that computed them. Raises as HostSession.read_rows does.

        Raises RuntimeError if that device fails, since the rows are then lost. Another forward computes them again.
        """
        self._check_usable()
        self._finish_transfers()
        _, _, owner, local = self._owner(request, branch, count)
        found = self._results({owner: partial(owner.session.read_rows, request, local, count)})
        if found is None:
            self._last = None
            raise RuntimeError(f"the rows were lost with device {owner.session.device}; run the forward again")
        return found[0]

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows of another session, on every device. Raises ValueError if they do not fit."""
        self._check_usable()
        self._finish_transfers()
        self._results({device: partial(device.session.append_rows, request, rows) for device in self._devices})
        self._lengths[request] = self.prefix_length(request) + rows.count

    def shorten(self, request: int, count: int) -> None:
        """Shorten the prefix on every device. This returns at once; devices shorten it before their next forward."""
        self._check_usable()
        check_prefix_count(self.prefix_length(request), count)
        if count == self.prefix_length(request):
            return
        self._finish_transfers()  # lost rows are recomputed over the unshortened prefix
        for device in self._devices:
            device.submit(partial(device.session.shorten, request, count))
        self._shortened.add(request)
        self._lengths[request] = count

    def prefix_length(self, request: int) -> int:
        """Return the committed rows of the request, 0 for an unknown one."""
        return self._lengths.get(request, 0)

    def release(self, request: int) -> None:
        """Drop the request and its new rows. Devices free its caches before their next forward."""
        for transfer in self._transfers:
            if transfer.request == request:
                transfer.rows.cancel()
        self._transfers = [transfer for transfer in self._transfers if transfer.request != request]
        self._lengths.pop(request, None)
        if self._last is not None and request in self._last.batch.requests:
            self._last = None
        for device in self._devices:
            device.submit(partial(device.session.release, request))

    def close(self) -> None:
        """Close every session. One that hangs or fails is abandoned. Closing twice is allowed."""
        self._closed = True
        for transfer in self._transfers:
            transfer.rows.cancel()
        devices, self._devices = self._devices, []  # at once, as a thread that was stopped answers no second close()
        wait([device.close() for device in devices], timeout=self._stall_seconds)
        self._transfers.clear()
        self._lengths.clear()
        self._last = None

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

    def _owner(self, request: int, branch: int, count: int) -> tuple["_LastForward", int, SessionThread, int]:
        """Return the last forward, the index of the request in it, the device that computed `branch`, and the index of
        `branch` on that device."""
        last = self._last
        slot = slot_of_rows(None if last is None else last.batch, request, branch, count)
        assert last is not None
        owner, share = next((device, share) for device, share in last.shares if share.start <= branch < share.stop)
        return last, slot, owner, branch - share.start

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
                self._last = None  # the device that recomputed rows has a newer last forward


@dataclass(frozen=True, eq=False)
class _LastForward:
    """The last forward, and the device of each of its branches."""

    batch: WindowBatch
    shares: list[tuple[SessionThread, slice]]


@dataclass(frozen=True, eq=False)
class _ShareResult:
    statistics: Statistics
    time: DeviceTime


@dataclass(frozen=True, eq=False)
class _CallerError:
    error: Exception


def _compute_share(session: Session, part: WindowBatch) -> _ShareResult:
    """Compute one device's share of a forward, on its thread."""
    began = time.perf_counter()
    statistics = session.forward(part)
    seconds = time.perf_counter() - began
    if statistics.topk_ids.shape[:3] != part.logits_index.shape:
        raise RuntimeError(f"returned statistics {statistics.topk_ids.shape} for rows {part.logits_index.shape}")
    return _ShareResult(statistics, DeviceTime(session.device, part.input_ids.shape[1], seconds))


def _result_or_caller_error(call: Callable[[], T]) -> T | _CallerError:
    """Return the result of `call`. Return, not raise, an error that every device would raise for this call."""
    try:
        return call()
    except (ValueError, BadInputError) as error:
        return _CallerError(error)
