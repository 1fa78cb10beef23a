"""The Session protocol, whose implementations compute forwards and keep prefix caches.

This module also opens sessions by device name.
"""

import importlib
import itertools
from collections.abc import Sequence
from typing import Protocol, cast

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.device_families import FAMILIES, STAGE_SEPARATOR, full_device_name, parse_device
from lopa.runtime.errors import BadInputError, converted_device_errors
from lopa.runtime.sessions.bound_forward import BoundForward
from lopa.runtime.sessions.cpu_cores import cores_from_device
from lopa.runtime.sessions.tickets import Ticket


class KeptRows(Protocol):
    """Committed rows that later requests of the same session may begin with.

    They stay when their request is freed. Dropping the object frees them, on any thread and also after close().
    """

    @property
    def count(self) -> int:
        """Number of rows."""


class Session(Protocol):
    """Interface of every backend. A session is not thread-safe.

    The caller chooses request numbers. A request's prefix is empty at first and exists until `free`. A forward is
    started, waited for, and released (docs/concepts/contract.md, "Sessions"). Forwards of different requests may be in
    flight at the same time. Between `start` and `wait` of a forward, the caches of its requests must not change:
    `commit`, `append_rows`, `append_kept`, `shorten` and `free` of such a request raise RuntimeError.
    """

    @property
    def device(self) -> str:
        """Device name as given by the user, e.g. "cpu"."""

    @property
    def rows_per_forward(self) -> int | None:
        """Number of rows that the forwards of several requests should not exceed, or None if windows are padded.

        With a number, windows are not padded, and `start` already computes: the host can work until `wait`.
        """

    def free_rows(self) -> int | None:
        """Return the number of rows that the device still has memory for, or None if the session knows no limit."""

    def start(self, batch: PackedBatch) -> Ticket:
        """Start a forward of every window against its request's prefix, and keep `batch` until it is computed.

        Raises ValueError for mismatched arrays, and RuntimeError if a forward that was started and not waited for has
        one of the requests.
        """

    def wait(self, ticket: Ticket) -> Statistics:
        """Return the statistics [M, ...] of the batch's sampled rows, in their order. A device may compute them here.

        Raises RuntimeError unless the ticket was started and not waited for. If it raises, all caches are as they were,
        and the ticket counts as released. Other tickets stay valid unless the device failed (EngineFailedError).
        """

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Append the first `count` rows of the request's window number `branch` in the forward to its prefix.

        Raises RuntimeError before `wait` and after `release`, or if the forward does not have the request or it was
        freed since. Raises ValueError for an invalid branch or count.
        """

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return a copy of the rows that `commit` would append, for another session. Raises like `commit`."""

    def release(self, ticket: Ticket) -> None:
        """End the use of the forward's new rows. A released or unknown ticket is ignored."""

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed to the request's prefix.

        `start`, `commit`, `append_rows` and `append_kept` raise DeviceMemoryError if the device has no memory for rows
        of a request. All caches are then as they were, and a ticket from before stays valid.
        """

    def keep_rows(self, request: int, start: int, count: int) -> KeptRows:
        """Return committed rows of the request, `count` of them from number `start` on, for `append_kept`.

        The request may be in flight. Raises ValueError unless there are these rows, at least one.
        """

    def append_kept(self, request: int, rows: Sequence[KeptRows]) -> None:
        """Append rows, one or more pieces from `keep_rows` of this session, to the request's prefix."""

    def shorten(self, request: int, count: int) -> None:
        """Drop the request's committed rows after the first `count`, as if they had never been committed.

        New rows of forwards stay readable. Raises ValueError unless 0 <= count <= prefix_length(request).
        """

    def prefix_length(self, request: int) -> int:
        """Return the number of committed rows of the request, or 0 if it is unknown."""

    def free(self, request: int) -> None:
        """Free the request's cache. Its new rows can no longer be used. An unknown request is ignored."""

    def close(self) -> None:
        """Free all resources. The session cannot be used afterwards."""


class SessionFactory(Protocol):
    """Function that opens a session. Each backend module has one, named `open_session`."""

    def __call__(self, bundle: Bundle, device: str, *, threads: int | None) -> Session:
        """Open `device` as written by the user. With `threads` None, the backend chooses."""


class StageFactory(Protocol):
    """Function that opens some layers of a model. Backends that support pipeline stages have one, named
    `forward_from_bundle`.
    """

    def __call__(self, bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
        """Open the standard graph of `part` in `bundle`, otherwise like SessionFactory."""


PIPELINE = "lopa.runtime.multi_device.pipeline_session"
"""Module with `open_session` for several devices, each with some of the layers."""

_numbers = itertools.count(1)


def check_prefix_count(length: int, count: int) -> None:
    """Raise ValueError unless the first `count` of `length` committed rows can be kept."""
    if not 0 <= count <= length:
        raise ValueError(f"received count {count}, expected one from 0 to {length}, the committed rows")


def check_kept_rows(length: int, start: int, count: int) -> None:
    """Raise ValueError unless `count` rows from number `start` on, at least one, are among `length` committed rows."""
    if not 0 <= start < start + count <= length:
        raise ValueError(
            f"received rows {start} to {start + count}, expected one or more of the {length} committed rows"
        )


class KeepsOnHost:
    """Part of a session that pads windows, has no known limit of memory, and keeps rows in host memory."""

    rows_per_forward: int | None = None

    def free_rows(self) -> int | None:
        """Return None."""
        return None

    def append_kept(self: Session, request: int, rows: Sequence[KeptRows]) -> None:
        """Append rows from `keep_rows`. Raises like `append_rows`."""
        self.append_rows(request, CacheRows.joined(cast("Sequence[CacheRows]", rows)))


def next_request_number() -> int:
    """Return a request number that is unique in this process, also across sessions."""
    return next(_numbers)


def open_session(bundle: Bundle, device: str, *, threads: int | None = None) -> Session:
    """Open `bundle` on `device`: "cpu", "cuda:0", or a pipeline such as "cuda:0+cuda:1".

    Raises BadInputError for an unknown device, and for a bundle that changed since it was opened. Raises
    MissingBackendError if its library or the device is missing, and EngineFailedError if the device fails in another
    way. OSError and MemoryError pass unchanged.
    """
    device = full_device_name(device)
    with converted_device_errors(device, "opening", unchanged=(OSError, MemoryError)):
        check_canvases(bundle, [device])
        is_pipeline = STAGE_SEPARATOR in device
        module = PIPELINE if is_pipeline else parse_device(device).family.session_module
        factory: SessionFactory = importlib.import_module(module).open_session
        session = factory(bundle, device, threads=threads)
    try:
        bundle.check_unchanged()
    except BaseException:
        session.close()
        raise
    return session


def check_canvases(bundle: Bundle, devices: Sequence[str]) -> None:
    """Raise BadInputError for a bundle with canvases on a device that cannot compute them, on cores, or on several."""
    if bundle.manifest.dimensions.canvas is None:
        return
    families = [name for name, each in FAMILIES.items() if each.canvases]
    is_one = len(devices) == 1 and STAGE_SEPARATOR not in devices[0] and cores_from_device(devices[0]) is None
    if not is_one or parse_device(devices[0]).family.name not in families:
        raise BadInputError(
            f"device {', '.join(map(repr, devices))} for a bundle with canvases (contract version 2)",
            expected=f"one of {', '.join(families)}, without core numbers",
            remedy="use --device cpu; soft embeddings stay in one session, and other devices have no form of them yet",
        )


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
    """Open the standard graph of `part` in `bundle` on a device whose family supports stages.

    Raises like `open_session`, and BadInputError for a device that cannot be a stage.
    """
    module = parse_device(device).family.stage_module
    if module is None:
        stage_families = [family.name for family in FAMILIES.values() if family.stage_module is not None]
        raise BadInputError(
            f"device {device!r} cannot be a stage of a pipeline",
            expected=f"a device of the family {', '.join(stage_families)}",
            remedy="use stages such as cuda:0+cuda:1 or cpu+cpu",
        )
    factory: StageFactory = importlib.import_module(module).forward_from_bundle
    return factory(bundle, part, device, threads=threads)
