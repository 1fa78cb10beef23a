"""A session made of sessions: the branches of every forward are dealt over devices that compute at the same time.

Knows who computed which branch, how committed rows reach the devices that did not, and what to do when a device fails.
Does not know what kind of session a device has, nor any decoding rule.

The protocol is LoPA-Dist's in two phases (docs/reference/algorithm.md, section 10). Forward: every device computes its
branches and holds their new rows. Commit: the winner's rows go from the device that has them to the others, which
append them; the next forward of a device queues behind its append, so the transfer runs beside the caller's work. Where
the rows are the same on every branch (lopa.runtime.contract.batch_parts) each device commits its own instead, and
nothing is sent.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.contract.batch_parts import rows_are_shared, shares_of_branches
from lopa.runtime.contract.forward import DeviceTime, ForwardSplit, check_batch
from lopa.runtime.errors import BadInputError, DevicesLostError
from lopa.runtime.parallel.row_transfer import RowTransfer, transfer_of_lost_rows, transfer_of_rows
from lopa.runtime.parallel.session_thread import SessionThread
from lopa.runtime.sessions.session import LendingSession, Session, check_kept, slot_of_rows

STALL_SECONDS = 60.0
"""A device that needs longer for one forward is given up."""

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class LostDevice:
    """A device that failed and is used no more."""

    device: str
    reason: str


class BranchParallelSession:
    """The Session protocol over other sessions, each driven by a thread of its own, which it takes over.

    A device that raises, or does not answer within `stall_seconds`, is left out from then on: `lost` has it, a warning
    is logged, and what it had to compute is computed by the others. ValueError and BadInputError of a forward are the
    caller's, not the device's. A device named as cores ("cpu:0-1") has its thread on these cores only.

    Methods raise DevicesLostError when no device is left, and otherwise as the protocol says.
    """

    def __init__(self, sessions: Sequence[Session], *, stall_seconds: float = STALL_SECONDS) -> None:
        """Raises ValueError without any session, or for a limit that is not positive."""
        if not sessions or not stall_seconds > 0:
            raise ValueError(f"received {len(sessions)} sessions and {stall_seconds} seconds, expected some of both")
        self._devices = [SessionThread(session) for session in sessions]
        """Those in use."""
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
        """Requests whose prefix is not that of the last forward any more."""
        self._transfers: list[RowTransfer] = []
        """Rows that may still be on their way."""
        self._closed = False

    @property
    def device(self) -> str:
        """The devices as the user named them, with commas between."""
        return self._name

    @property
    def lost(self) -> tuple[LostDevice, ...]:
        """The devices that failed, in order."""
        return tuple(self._lost)

    def forward(self, batch: WindowBatch) -> Statistics:
        """Every device computes its branches, all at the same time. Raises ValueError as every session does.

        When devices fail, all branches are dealt again over those that are left: rows can be committed only from the
        last forward of a session, so each has to compute its part of the same one.
        """
        self._check_usable()
        check_batch(batch)
        began = time.perf_counter()
        self._finish_transfers()
        self._last = None
        self._shortened.clear()
        answers: list[_Answer] | None = None
        while answers is None:
            dealt = shares_of_branches(batch.input_ids.shape[1], len(self._devices))
            shares = [(device, share) for device, share in zip(self._devices, dealt, strict=True)]
            answers = self._results(
                {
                    device: partial(_answer, device.session, batch.part(branches=share))
                    for device, share in shares
                    if share.start < share.stop
                }
            )
        self._last = _LastForward(batch, shares)
        statistics = Statistics.joined([answer.statistics for answer in answers])
        times = tuple(answer.time for answer in answers)
        gather = time.perf_counter() - began - max(each.seconds for each in times)
        return replace(statistics, split=ForwardSplit(times, gather))

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the rows on every device; returns at once, the devices do it before their next forward.

        Raises as HostSession.commit does. A device that fails here is found, and made up for, in the next forward.
        """
        self._check_usable()
        if request in self._shortened:  # nobody could compute these rows again, were they lost on their way
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
        """A copy of the rows, from the device that computed them. Raises as HostSession.read_rows does.

        When that device fails, the rows are gone: RuntimeError; another forward computes them again.
        """
        self._check_usable()
        self._finish_transfers()
        _, _, owner, local = self._owner(request, branch, count)
        found = self._results({owner: partial(owner.session.read_rows, request, local, count)})
        if found is None:
            self._last = None
            raise RuntimeError(f"the rows were lost with device {owner.session.device}; expected another forward first")
        return found[0]

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed, on every device. Raises ValueError when they do not fit."""
        self._check_usable()
        self._finish_transfers()
        self._results({device: partial(device.session.append_rows, request, rows) for device in self._devices})
        self._lengths[request] = self.prefix_length(request) + rows.count

    def shorten(self, request: int, count: int) -> None:
        """Session.shorten on every device; returns at once, the devices do it before their next forward."""
        self._check_usable()
        check_kept(self.prefix_length(request), count)
        if count == self.prefix_length(request):
            return
        self._finish_transfers()  # rows that are lost on their way are computed again over the prefix as it was
        for device in self._devices:
            device.submit(partial(device.session.shorten, request, count))
        self._shortened.add(request)
        self._lengths[request] = count

    def prefix_length(self, request: int) -> int:
        """Committed rows of the request, 0 for an unknown one."""
        return self._lengths.get(request, 0)

    def release(self, request: int) -> None:
        """Forget the request and its new rows; the devices free its caches before their next forward."""
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
        """Close every session; one that hangs, or fails at it, is left behind. Closing twice is no error."""
        self._closed = True
        for transfer in self._transfers:
            transfer.rows.cancel()
        wait([device.close() for device in self._devices], timeout=self._stall_seconds)
        self._devices.clear()
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
            expected="at least one device that answers",
            remedy="check the devices with lopa-export doctor; if they are only slow, allow more with --device-timeout",
        )

    def _owner(self, request: int, branch: int, count: int) -> tuple["_LastForward", int, SessionThread, int]:
        """The last forward, the request's place in it, the device that computed `branch`, and its number there."""
        last = self._last
        slot = slot_of_rows(None if last is None else last.batch, request, branch, count)
        assert last is not None
        owner, share = next((device, share) for device, share in last.shares if share.start <= branch < share.stop)
        return last, slot, owner, branch - share.start

    def _results(self, calls: Mapping[SessionThread, Callable[[], T]]) -> list[T] | None:
        """What the devices answer to their calls; None when one of these devices was lost.

        Waits for all devices, also for what they were given before: whoever failed at that is lost as well. Comes after
        `_finish_transfers`, so that none of them waits for rows of another. Raises ValueError and BadInputError of a
        call.
        """
        futures = {device: device.submit(partial(_result_or_callers_error, call)) for device, call in calls.items()}
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
            if isinstance(result, _CallersError):
                raise result.error
            results.append(result)
        return results

    def _fault(self, job: Future[Any]) -> str | None:
        """Why a device is to be given up, None when the job went well."""
        if not job.done():
            return f"no answer within {self._stall_seconds:g} seconds"
        error = job.exception()
        return None if error is None else f"{type(error).__name__}: {error}"

    def _lose(self, device: SessionThread, reason: str) -> None:
        """Use `device` no more. Raises DevicesLostError when it was the last."""
        if device not in self._devices:
            return
        self._devices.remove(device)
        device.close()  # if it ever comes so far
        self._lost.append(LostDevice(device.session.device, reason))
        if not self._devices:
            raise self._no_device_left()
        _LOG.warning("device %s was lost, the others go on without it: %s", device.session.device, reason)

    def _finish_transfers(self) -> None:
        """See to it that all rows on their way arrive: those lost with their device are computed again by another."""
        while self._transfers:
            transfer = self._transfers.pop(0)
            wait([transfer.read], timeout=self._stall_seconds if transfer.owner in self._devices else 0)
            if transfer.rows.done() or not transfer.rows.cancel():
                continue
            self._lose(transfer.owner, self._fault(transfer.read) or "its rows did not come")
            left = [device for device in transfer.receivers if device in self._devices]
            if left:
                self._transfers.append(transfer_of_lost_rows(transfer, left))
                self._last = None  # that device's last forward is another now


@dataclass(frozen=True, eq=False)
class _LastForward:
    """The last forward, and who computed which of its branches."""

    batch: WindowBatch
    shares: list[tuple[SessionThread, slice]]


@dataclass(frozen=True, eq=False)
class _Answer:
    statistics: Statistics
    time: DeviceTime


@dataclass(frozen=True, eq=False)
class _CallersError:
    error: Exception


def _answer(session: Session, part: WindowBatch) -> _Answer:
    """One device's share of a forward, on its thread."""
    began = time.perf_counter()
    statistics = session.forward(part)
    seconds = time.perf_counter() - began
    if statistics.topk_ids.shape[:3] != part.logits_index.shape:
        raise RuntimeError(f"answered {statistics.topk_ids.shape} for rows {part.logits_index.shape}")
    return _Answer(statistics, DeviceTime(session.device, part.input_ids.shape[1], seconds))


def _result_or_callers_error(call: Callable[[], T]) -> T | _CallersError:
    """The result; an error that every device would raise for this call comes back as a value."""
    try:
        return call()
    except (ValueError, BadInputError) as error:
        return _CallersError(error)
