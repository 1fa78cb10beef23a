"""Moments of a request, e.g. for traces."""

from dataclasses import dataclass


@dataclass
class RequestTiming:
    """Moments on time.perf_counter's clock; None before they happen. The engine writes them."""

    queued: float | None = None
    """The checked request joined the engine's queue."""
    admitted: float | None = None
    """The request left the queue for its first round. None if it ended before that."""
    prefilled: float | None = None
    """The first round ended. It computes the prompt and the first window in one forward."""
    first_text: float | None = None
    """The first text was final."""
    ended: float | None = None
    """The result or the error was available."""
