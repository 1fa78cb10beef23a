"""Whatever a device raises becomes one typed error. Knows no device and no decoding rule."""

from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.contract import ENTROPY, TOP_K, TOPK_IDS, TOPK_LOGPROBS, CacheRows, Statistics, WindowBatch
from lopa.runtime.errors import EngineFailedError, LopaError
from lopa.runtime.files.untrusted_input import said_by
from lopa.runtime.sessions.session import Session


def failure_of_device(device: str, error: BaseException) -> LopaError:
    """`error` itself where it is one of ours, otherwise an EngineFailedError that it is the cause of."""
    if isinstance(error, LopaError):
        return error
    failure = EngineFailedError(
        f"{device} failed while it decoded: {type(error).__name__}: {said_by(error)}",
        expected="a device that answers every forward",
        remedy="check the bundle and the device with lopa-export verify and lopa-export doctor; if the memory is full, "
        "decode fewer requests or branches at a time",
    )
    failure.__cause__ = error
    return failure


@contextmanager
def raised_as_failure_of(device: str) -> Iterator[None]:
    """Whatever the block raises is raised as `failure_of_device` makes it, but for what ends the whole process."""
    try:
        yield
    except LopaError:
        raise
    except Exception as error:
        raise failure_of_device(device, error) from error


def _check_shapes(statistics: Statistics, batch: WindowBatch) -> None:
    wanted = batch.logits_index.shape
    for name, found, expected in (
        (TOPK_IDS, statistics.topk_ids.shape, (*wanted, TOP_K)),
        (TOPK_LOGPROBS, statistics.topk_logprobs.shape, (*wanted, TOP_K)),
        (ENTROPY, statistics.entropy.shape, wanted),
    ):
        if found != expected:
            raise ValueError(f"the device answered {name} {found}, expected {expected}")


class TypedSession:
    """The Session protocol over `session`, for who decodes: every call gives an answer or a LopaError."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def device(self) -> str:
        """Session.device."""
        return self._session.device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Session.forward."""
        with raised_as_failure_of(self.device):
            statistics = self._session.forward(batch)
            _check_shapes(statistics, batch)
        return statistics

    def commit(self, request: int, branch: int, count: int) -> None:
        """Session.commit."""
        with raised_as_failure_of(self.device):
            self._session.commit(request, branch, count)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Session.read_rows."""
        with raised_as_failure_of(self.device):
            return self._session.read_rows(request, branch, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Session.append_rows."""
        with raised_as_failure_of(self.device):
            self._session.append_rows(request, rows)

    def shorten(self, request: int, count: int) -> None:
        """Session.shorten."""
        with raised_as_failure_of(self.device):
            self._session.shorten(request, count)

    def prefix_length(self, request: int) -> int:
        """Session.prefix_length."""
        with raised_as_failure_of(self.device):
            return self._session.prefix_length(request)

    def release(self, request: int) -> None:
        """Session.release."""
        with raised_as_failure_of(self.device):
            self._session.release(request)

    def close(self) -> None:
        """Session.close."""
        with raised_as_failure_of(self.device):
            self._session.close()
