"""A real server on a thread of this process, whose spans stay in memory."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import uvicorn
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanKind

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.serve.answering.service import Service, pending_from_open
from lopa.serve.app import app_from_pending
from lopa.serve.http.origin_policy import OriginPolicy
from lopa.serve.metrics import ServeMetrics
from lopa.serve.serve_limits import ServeLimits
from lopa.serve.tracing.request_spans import RequestSpans

WAIT = 60.0


class TracedServer:
    """The server, with the spans that it has ended."""

    def __init__(self, url: str, engine: Engine, exporter: InMemorySpanExporter) -> None:
        self.url, self.engine, self._exporter = url, engine, exporter
        self.http = httpx.Client(base_url=url, timeout=WAIT, trust_env=False)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def spans(self, requests: int = 1) -> list[list[ReadableSpan]]:
        """Return the spans of the next `requests` traced requests in order of their ends, the request's own first."""
        end = time.monotonic() + WAIT
        while len(servers := [each for each in self._exporter.get_finished_spans() if is_server(each)]) < requests:
            assert time.monotonic() < end, "a span never ended"
            time.sleep(0.01)
        ended = self._exporter.get_finished_spans()
        self._exporter.clear()
        assert len(servers) == requests
        found = [[server, *(each for each in ended if is_child(each, server))] for server in servers]
        assert sum(map(len, found)) == len(ended), "every span belongs to a request"
        return found


def is_server(span: ReadableSpan) -> bool:
    return span.kind is SpanKind.SERVER


def is_child(span: ReadableSpan, server: ReadableSpan) -> bool:
    return span.parent is not None and server.context is not None and span.parent.span_id == server.context.span_id


@contextmanager
def traced_server(
    bundle: Path, *, max_num_seqs: int = 2, queue_limit: int = 2, sampler: Sampler | None = None
) -> Iterator[TracedServer]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    metrics = ServeMetrics("tiny")
    with (
        Decoder.open(bundle, threads=1) as decoder,
        Engine(decoder, max_num_seqs=max_num_seqs, queue_limit=queue_limit, observer=metrics) as engine,
    ):
        service = Service(engine, "tiny", decoder.tokenizer.decode, ServeLimits(max_choices=8), metrics)
        pending = pending_from_open(service)
        pending.spans = RequestSpans(provider.get_tracer("test"))
        app = app_from_pending(pending, OriginPolicy())
        server = uvicorn.Server(uvicorn.Config(app, port=0, http="httptools", log_config=None, access_log=False))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            end = time.monotonic() + WAIT
            while not server.started:
                assert time.monotonic() < end
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            started = TracedServer(f"http://127.0.0.1:{port}", engine, exporter)
            with started.http:
                yield started
        finally:
            server.should_exit = True
            thread.join(WAIT)
            provider.shutdown()
