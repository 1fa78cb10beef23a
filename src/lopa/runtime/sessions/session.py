"""Who computes forwards and keeps prefix caches: the protocol, and how a session is opened. Knows no decoding rule."""

import importlib
import itertools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.contract.timeline import Timeline
from lopa.runtime.device_families import FAMILIES, STAGE_SEPARATOR, parse_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.bound_forward import BoundForward


class Session(Protocol):
    """What every backend offers. Not thread-safe: one caller at a time.

    A request is a number that the caller chooses; its prefix starts empty at first sight and lives until `release`.
    The new rows of a forward stay readable until the next forward.
    """

    @property
    def device(self) -> str:
        """The device as the user named it, e.g. "cpu"; of "openvino:CPU:auto" the one that was taken."""

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run every window against its request's prefix; commits nothing."""

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix."""

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """A copy of the first `count` new rows of `branch` in the last forward, for another session."""

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed to the request's prefix."""

    def shorten(self, request: int, count: int) -> None:
        """Forget the request's committed rows behind the first `count`: as if the others had never been committed.

        The new rows of the last forward stay. Raises ValueError unless 0 <= count <= prefix_length(request).
        """

    def prefix_length(self, request: int) -> int:
        """Committed rows of the request, 0 for an unknown one."""

    def release(self, request: int) -> None:
        """Forget the request and free its cache; an unknown one is no error."""

    def close(self) -> None:
        """Free everything; the session cannot be used afterwards."""


@runtime_checkable
class LendingSession(Protocol):
    """A session whose rows others may take from where they lie."""

    def meet(self, others: Sequence[Session]) -> None:
        """Prepare to lend rows to these sessions and to borrow from them, where that is possible; before any forward.

        All of them are told of all the others.
        """

    def lend_rows(self, request: int, branch: int, count: int, borrowers: Sequence[Session]) -> CacheRows:
        """As Session.read_rows; what comes back need only be fit for `append_rows` of these sessions."""


class SessionFactory(Protocol):
    """Opens a session; each backend module has one, named `open_session`."""

    def __call__(self, bundle: Bundle, device: str, *, threads: int | None) -> Session:
        """`device` as the user wrote it; `threads` None leaves the number to the backend."""


class StageFactory(Protocol):
    """Opens some layers of a model; backends that can be stages of pipelines have one, named `forward_from_bundle`."""

    def __call__(self, bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
        """`bundle` has the standard graph of `part`; otherwise as SessionFactory."""


class PipelineFactory(Protocol):
    """Opens a session on several devices, each with some of the layers."""

    def __call__(self, bundle: Bundle, device: str, *, threads: int | None, timeline: Timeline | None) -> Session:
        """As SessionFactory; `timeline` gathers when the stages work, None records nothing."""


PIPELINE = "lopa.runtime.parallel.pipeline_session"
"""Module with a PipelineFactory named `open_session`."""

_numbers = itertools.count(1)


def slot_of_rows(ran: WindowBatch | None, request: int, branch: int, count: int) -> int:
    """The place of `request` in the last forward, which ran `ran`, for the first `count` new rows of its `branch`.

    Raises RuntimeError when it did not run the request (None: there was no forward), ValueError for a branch or a count
    that it does not have.
    """
    if ran is None or request not in ran.requests:
        what = "no forward" if ran is None else f"a forward of requests {list(ran.requests)}"
        raise RuntimeError(f"rows of request {request} wanted after {what}, expected a forward that runs it before")
    _, branches, width = ran.input_ids.shape
    if not 0 <= branch < branches:
        raise ValueError(f"received branch {branch}, expected one from 0 to {branches - 1}")
    if not 0 <= count <= width:
        raise ValueError(f"received count {count}, expected one from 0 to {width}, the rows of the window")
    return ran.requests.index(request)


def check_kept(length: int, count: int) -> None:
    """Raise ValueError unless the first `count` of `length` committed rows can be kept."""
    if not 0 <= count <= length:
        raise ValueError(f"received count {count}, expected one from 0 to {length}, the committed rows")


def unused_request() -> int:
    """A request number that nothing else in this process was given, whoever shares a session."""
    return next(_numbers)


def open_session(
    bundle: Bundle, device: str, *, threads: int | None = None, timeline: Timeline | None = None
) -> Session:
    """Open `bundle` on `device`: "cpu", "cuda:0", or a pipeline as "cuda:0+cuda:1", whose stages tell `timeline` when
    they work.

    Raises BadInputError for an unknown device, MissingBackendError when its library or device is absent.
    """
    if STAGE_SEPARATOR in device:
        pipelined: PipelineFactory = importlib.import_module(PIPELINE).open_session
        return pipelined(bundle, device, threads=threads, timeline=timeline)
    factory: SessionFactory = importlib.import_module(parse_device(device).family.session_module).open_session
    return factory(bundle, device, threads=threads)


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
    """Open the graph of `bundle`, which is the standard one of `part`, on a device whose family has stages.

    Raises as `open_session`, BadInputError for a device that cannot be a stage.
    """
    module = parse_device(device).family.stage_module
    if module is None:
        able = [family.name for family in FAMILIES.values() if family.stage_module is not None]
        raise BadInputError(
            f"device {device!r} as a stage of a pipeline",
            expected=f"a device of {', '.join(able)}",
            remedy="e.g. cuda:0+cuda:1, or cpu+cpu",
        )
    factory: StageFactory = importlib.import_module(module).forward_from_bundle
    return factory(bundle, part, device, threads=threads)
