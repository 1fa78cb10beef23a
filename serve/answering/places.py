"""Places in the engine for requests that are not there yet, so that no prompt is read that finds no place."""

from collections.abc import Iterator
from contextlib import contextmanager

from lopa.runtime.engine import Engine
from lopa.serve.http.api_error import ApiError, overloaded, unavailable


class Places:
    """Used on the event loop alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reserved = 0

    def check(self, count: int) -> None:
        """Raise ApiError unless `count` requests more may come in: 503 where none may at all, 429 where it is full."""
        status = self._engine.status
        if status.failure is not None:
            raise unavailable(f"the device has failed: {status.failure.received}", "engine_failed")
        if status.closed or status.draining:
            raise unavailable("the server is stopping", "not_ready")
        most = status.slots + status.queue_limit
        if count > most:
            raise ApiError(400, f"{count} answers at once, where {most} have a place", param="n")
        if status.running + status.waiting + self._reserved + count > most:
            raise overloaded(f"{status.running} requests run and {status.waiting} wait: the queue is full")

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Hold `count` places until they are taken, or given up. Raises as `check` does."""
        self.check(count)
        self._reserved += count
        try:
            yield
        finally:
            self._reserved -= count
