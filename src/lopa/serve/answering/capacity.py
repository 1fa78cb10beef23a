"""Capacity check of an engine, made before any work on a request."""

from lopa.runtime.engine import Engine
from lopa.serve.http.api_error import ApiError, overloaded, unavailable


def check_capacity(engine: Engine, count: int) -> None:
    """Raise ApiError unless the engine has a place for one of `count` more requests, as Engine.reserved does.

    503: it accepts none. 429: it is full. 400: it has fewer places.
    """
    status = engine.status
    if status.failure is not None:
        raise unavailable(f"device failed: {status.failure.received}", "engine_failed")
    if status.closed or status.draining:
        raise unavailable("server is shutting down", "not_ready")
    capacity = status.max_num_seqs + status.queue_limit
    if count > capacity:
        raise ApiError(400, f"{count} choices requested; this server runs and queues at most {capacity}", param="n")
    if status.running + status.waiting + status.reserved >= capacity:
        taken = f"{status.running} running, {status.waiting} waiting and {status.reserved} new requests"
        raise overloaded(f"queue full: {taken}; retry later")
