"""Whether there is room in an engine, asked before anything is done for a request."""

from lopa.runtime.engine import Engine
from lopa.serve.http.api_error import ApiError, overloaded, unavailable


def check_places(engine: Engine, count: int) -> None:
    """Raise ApiError unless `count` requests more may come in: 503 where none may at all, 429 where it is full."""
    status = engine.status
    if status.failure is not None:
        raise unavailable(f"the device has failed: {status.failure.received}", "engine_failed")
    if status.closed or status.draining:
        raise unavailable("the server is stopping", "not_ready")
    upper = status.max_num_seqs + status.queue_limit
    if count > upper:
        raise ApiError(400, f"{count} answers at once, where {upper} have a place", param="n")
    if status.running + status.waiting + status.reserved + count > upper:
        raise overloaded(f"{status.running} requests run and {status.waiting} wait: the queue is full")
