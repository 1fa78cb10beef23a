"""Service of one model: its engine, name, limits and keys. It may still be opening."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.chat.call_format import CallFormat
from lopa.runtime.engine import Engine
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.serve.http.api_error import STOPPING, ApiError, unavailable
from lopa.serve.http.keys import ApiKeys
from lopa.serve.metrics import ServeMetrics
from lopa.serve.openai.body_options import CHATS, COMPLETIONS, MESSAGES, RESPONSES, SCORES
from lopa.serve.openai.response_shapes import DecodeIds
from lopa.serve.protocols.reply_format import fingerprint_from_manifest
from lopa.serve.serve_limits import ServeLimits

if TYPE_CHECKING:  # it needs the extra `otel`
    from lopa.serve.tracing.request_spans import RequestSpans


_PREPARATION_THREADS = 2
"""Threads that tokenize prompts, so that a long prompt does not delay other requests."""
_GRAMMAR_THREADS = GrammarLimits().processes
"""Threads that prepare only requests with a grammar. They wait for the helper process and compile
the grammars it has checked."""


@dataclass(frozen=True, eq=False)
class Service:
    """State that the app needs: engine, limits, metrics, keys and model cards."""

    engine: Engine
    name: str
    """Model name in the API."""
    decode_ids: DecodeIds
    limits: ServeLimits
    metrics: ServeMetrics
    keys: ApiKeys | None = None
    """API keys, or None without authentication."""
    catalog: Mapping[str, Mapping[str, Any]] | None = None
    """Cards of all models that clients can request, by name, or None for this service's model only."""
    call_format: CallFormat | None = None
    """Format of tool calls, or None to recognise it from the chat template."""
    on_close: Callable[[], None] = lambda: None
    """Called once the engine is closed."""
    threads: ThreadPoolExecutor = field(init=False)
    """Threads that prepare requests without a grammar."""
    grammar_threads: ThreadPoolExecutor = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = field(init=False)
    """System fingerprint: version of lopa and digest of the bundle's manifest."""

    def __post_init__(self) -> None:
        manifest = self.engine.decoder.bundle.manifest
        object.__setattr__(self, "fingerprint", fingerprint_from_manifest(manifest))
        object.__setattr__(self, "threads", ThreadPoolExecutor(_PREPARATION_THREADS, "lopa-serve"))
        object.__setattr__(self, "grammar_threads", ThreadPoolExecutor(_GRAMMAR_THREADS, "lopa-grammar"))

    @property
    def cards(self) -> Mapping[str, Mapping[str, Any]]:
        """Model cards of /v1/models, by name."""
        if self.catalog is not None:
            return self.catalog
        decoder = self.engine.decoder
        chats = decoder.tokenizer.has_chat_template
        return {self.name: model_card(self.name, self.created, decoder.bundle.manifest, chats=chats)}

    def check_model(self, name: object, known: Container[object] | None = None) -> None:
        """Raise ApiError 404 unless `name` is this service's model, or one of `known`."""
        if name not in ((self.name,) if known is None else known):
            cards = ", ".join(map(repr, self.cards))
            raise ApiError(
                404,
                f"model {str(name)[:80]!r} does not exist; available: {cards}",
                param="model",
                code="model_not_found",
            )

    def close(self) -> None:
        """Close the engine, which cancels running requests, and stop the threads."""
        self.engine.close()
        self.threads.shutdown()
        self.grammar_threads.shutdown()
        self.on_close()


def model_card(name: str, created: int, manifest: Manifest, *, chats: bool) -> dict[str, Any]:
    """Return the model card of /v1/models. `created` is in seconds since 1970; `chats`: True if chat requests work."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "lopa-export",
        "max_model_len": manifest.dimensions.max_positions,
        "has_canvas": manifest.dimensions.canvas is not None,
        "endpoints": [*([CHATS, COMPLETIONS, MESSAGES, RESPONSES] if chats else [COMPLETIONS]), SCORES],
    }


@dataclass(kw_only=True, eq=False)
class PendingService:
    """A service that is set once its bundle is open and warmed up."""

    limits: ServeLimits
    metrics: ServeMetrics
    keys: ApiKeys | None
    reason: str
    """Reason why the service is not set yet, e.g. "opening tiny on cpu"."""
    service: Service | None = None
    retiring: Service | None = None
    """The service before the last change of the bundle, until its last request has ended."""
    is_stopping: bool = False
    """True once new requests are rejected, because the server stops."""
    spans: RequestSpans | None = None
    """Writer of the spans of requests, or None without traces."""

    def __post_init__(self) -> None:
        self.metrics.is_ready = lambda: self.refusal() is None
        if self.service is not None:
            self.change(self.service, None)

    def opened(self) -> Service:
        """Return the service. Raises ApiError 503 before it is set."""
        if self.service is None:
            raise self.not_ready()
        return self.service

    def check_accepting(self) -> None:
        """Raise ApiError 503 once the server stops."""
        if self.is_stopping:
            raise unavailable(STOPPING, "not_ready")

    def change(self, service: Service | None, retiring: Service | None) -> None:
        """Send new requests to `service`, while those of `retiring` finish."""
        self.service, self.retiring = service, retiring
        self.metrics.watch(*self.engines())
        if service is not None:
            schema = service.engine.decoder.bundle.manifest.schema
            self.metrics.show_bundle(service.fingerprint.rpartition("-")[2], str(schema))

    def refusal(self) -> ApiError | None:
        """Return the 503 reply to new requests, or None while the engine accepts them."""
        if self.service is None:
            return self.not_ready()
        status = self.service.engine.status
        is_closing = self.is_stopping or status.draining or status.closed
        return unavailable(STOPPING, "not_ready") if is_closing else None

    def engines(self) -> list[Engine]:
        """Return the open engines, the newest first."""
        return [each.engine for each in (self.service, self.retiring) if each is not None]

    def not_ready(self) -> ApiError:
        """Return the 503 reply that says what clients wait for."""
        return unavailable(f"not ready: {self.reason}", "not_ready")


def pending_from_open(service: Service) -> PendingService:
    """Return a PendingService whose service is open already."""
    return PendingService(limits=service.limits, metrics=service.metrics, keys=service.keys, reason="", service=service)
