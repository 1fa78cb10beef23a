"""A session that raises only typed errors."""

from collections.abc import Callable
from typing import TypeVar

from lopa.runtime.contract import ENTROPY, TOP_K, TOPK_IDS, TOPK_LOGPROBS, Statistics
from lopa.runtime.errors import converted_device_errors
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

T = TypeVar("T")


def _check_shapes(statistics: Statistics, sampled: int) -> None:
    for name, found, expected in (
        (TOPK_IDS, statistics.topk_ids.shape, (sampled, TOP_K)),
        (TOPK_LOGPROBS, statistics.topk_logprobs.shape, (sampled, TOP_K)),
        (ENTROPY, statistics.entropy.shape, (sampled,)),
    ):
        if found != expected:
            raise ValueError(f"the device returned {name} of shape {found}, expected {expected}")


class TypedSession(WrappedSession):
    """Session wrapper whose calls raise only LopaError."""

    def _run(self, work: Callable[[Session], T]) -> T:
        with converted_device_errors(self.device):
            return work(self._inner)

    def wait(self, ticket: Ticket) -> Statistics:
        """Wait for a forward and check the shapes of its statistics."""
        with converted_device_errors(self.device):
            statistics = self._inner.wait(ticket)
            _check_shapes(statistics, len(ticket.batch.sampled_rows))
        return statistics

    def close(self) -> None:
        """Close the wrapped session."""
        with converted_device_errors(self.device, "closing"):
            self._inner.close()
