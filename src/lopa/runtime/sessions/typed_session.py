"""A session that raises only typed errors."""

from lopa.runtime.contract import ENTROPY, TOP_K, TOPK_IDS, TOPK_LOGPROBS, CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.device_errors import converted_device_errors
from lopa.runtime.sessions.session import Session


def _check_shapes(statistics: Statistics, batch: WindowBatch) -> None:
    sampled = batch.logits_index.shape
    for name, found, expected in (
        (TOPK_IDS, statistics.topk_ids.shape, (*sampled, TOP_K)),
        (TOPK_LOGPROBS, statistics.topk_logprobs.shape, (*sampled, TOP_K)),
        (ENTROPY, statistics.entropy.shape, sampled),
    ):
        if found != expected:
            raise ValueError(f"the device returned {name} of shape {found}, expected {expected}")


class TypedSession:
    """Session wrapper whose calls raise only LopaError."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def device(self) -> str:
        """Device name of the wrapped session."""
        return self._session.device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run a forward and check the shapes of its statistics."""
        with converted_device_errors(self.device):
            statistics = self._session.forward(batch)
            _check_shapes(statistics, batch)
        return statistics

    def commit(self, request: int, branch: int, count: int) -> None:
        """Commit rows as Session.commit does."""
        with converted_device_errors(self.device):
            self._session.commit(request, branch, count)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return rows as Session.read_rows does."""
        with converted_device_errors(self.device):
            return self._session.read_rows(request, branch, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows as Session.append_rows does."""
        with converted_device_errors(self.device):
            self._session.append_rows(request, rows)

    def shorten(self, request: int, count: int) -> None:
        """Shorten the prefix as Session.shorten does."""
        with converted_device_errors(self.device):
            self._session.shorten(request, count)

    def prefix_length(self, request: int) -> int:
        """Return the prefix length as Session.prefix_length does."""
        with converted_device_errors(self.device):
            return self._session.prefix_length(request)

    def release(self, request: int) -> None:
        """Release the request as Session.release does."""
        with converted_device_errors(self.device):
            self._session.release(request)

    def close(self) -> None:
        """Close the wrapped session."""
        with converted_device_errors(self.device, "closing"):
            self._session.close()
