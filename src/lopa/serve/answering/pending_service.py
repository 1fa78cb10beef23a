"""A service that may still be opening, with the state that requests need before it is open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lopa.serve.answering.service import Service
from lopa.serve.http.api_error import ApiError, unavailable
from lopa.serve.http.keys import ApiKeys
from lopa.serve.metrics import ServeMetrics
from lopa.serve.serve_limits import ServeLimits

if TYPE_CHECKING:  # it needs the extra `otel`
    from lopa.serve.tracing.request_spans import RequestSpans


@dataclass(kw_only=True, eq=False)
class PendingService:
    """A service that is set once its bundle is open and warmed up."""

    limits: ServeLimits
    metrics: ServeMetrics
    keys: ApiKeys | None
    reason: str
    """Reason why the service is not set yet, e.g. "opening tiny on cpu"."""
    service: Service | None = None
    spans: RequestSpans | None = None
    """Writer of the spans of requests, or None without traces."""

    def opened(self) -> Service:
        """Return the service. Raises ApiError 503 before it is set."""
        if self.service is None:
            raise self.not_ready()
        return self.service

    def not_ready(self) -> ApiError:
        """Return the 503 reply that says what clients wait for."""
        return unavailable(f"not ready: {self.reason}", "not_ready")


def pending_from_open(service: Service) -> PendingService:
    """Return a PendingService whose service is open already."""
    return PendingService(limits=service.limits, metrics=service.metrics, keys=service.keys, reason="", service=service)
