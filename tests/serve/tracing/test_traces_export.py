"""A real server process that sends its spans to a collector of these tests over OTLP/HTTP."""

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from tests.serve.servers import WAIT, serving

from lopa.serve.logs import ACCESS

BODY: dict[str, Any] = {"model": "tiny", "prompt": "What is zebra plus 3?", "max_tokens": 8}
SOON: Mapping[str, str] = MappingProxyType({"OTEL_BSP_SCHEDULE_DELAY": "50"})


class Collector:
    """A collector that stores what it receives."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.received: list[tuple[str, Message, ExportTraceServiceRequest]] = []
        """Path, headers and content of each export."""
        self.seconds = 0.0
        """Seconds before an answer."""

    def spans(self) -> list[Any]:
        return [
            span
            for _, _, request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def until(self, count: int) -> list[Any]:
        end = time.monotonic() + WAIT
        while len(self.spans()) < count:
            assert time.monotonic() < end, "the spans never arrived"
            time.sleep(0.02)
        return self.spans()


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(collector.seconds)
            request = ExportTraceServiceRequest.FromString(content)
            collector.received.append((self.path, self.headers, request))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def values(attributes: Any) -> dict[str, Any]:
    """Return OTLP's attributes as a mapping."""
    found = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


def test_client_s_trace_reaches_the_collector(chat_bundle: Path) -> None:
    """Start a span in a client with the real SDK, and check that the server's spans continue it."""
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("client")
    variables = {**SOON, "OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=zoo"}
    with collecting() as collector:
        options = ("--otlp-traces-endpoint", f"{collector.url}/custom", "--access-log", "--log-format", "json")
        with serving(chat_bundle, *options, variables=variables) as server:
            assert json.loads(server.head[0])["message"] == "traces are exported, as set by --otlp-traces-endpoint"
            headers: dict[str, str] = {}
            with tracer.start_as_current_span("agent") as agent:
                TraceContextTextMapPropagator().inject(headers)
                answer = server.http.post("/v1/completions", json=BODY, headers=headers)
            server.http.get("/health")
            server.http.post("/v1/completions", json={})
            code, output = server.stop()
    assert code == 0
    parent = agent.get_span_context()
    [span] = [each for each in collector.spans() if each.name == "text_completion tiny"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (f"{parent.trace_id:032x}", f"{parent.span_id:016x}")
    children = [each for each in collector.spans() if each.parent_span_id == span.span_id]
    assert sorted(each.name for each in children) == ["decode", "prefill", "queue"]
    assert {each.trace_id for each in children} == {span.trace_id}
    assert values(span.attributes)["gen_ai.response.id"] == answer.json()["id"]
    assert values(span.attributes)["gen_ai.response.finish_reasons"] == [answer.json()["choices"][0]["finish_reason"]]
    path, sent, request = collector.received[0]
    assert (path, sent["x-tenant"], sent["Content-Type"]) == ("/custom", "zoo", "application/x-protobuf")
    assert values(request.resource_spans[0].resource.attributes)["service.name"] == "lopa-export"
    assert b"zebra" not in b"".join(each.SerializeToString() for _, _, each in collector.received)
    [rejected] = [each for each in collector.spans() if each.name == "text_completion"]
    lines = [json.loads(line) for line in output.splitlines()]
    traced, health, failed = [line for line in lines if line["logger"] == ACCESS]
    assert (traced["trace_id"], traced["span_id"], traced["trace_flags"]) == (
        span.trace_id.hex(),
        span.span_id.hex(),
        f"{parent.trace_flags:02x}",
    )
    assert traced["request_id"] == answer.headers["x-request-id"]
    assert not {"trace_id", "span_id", "trace_flags"} & set(health)
    assert (failed["trace_id"], failed["span_id"]) == (rejected.trace_id.hex(), rejected.span_id.hex())


def test_pipelined_request_without_a_span_has_no_trace_in_the_log(chat_bundle: Path) -> None:
    body = json.dumps(BODY).encode()
    head = b" HTTP/1.1\r\nHost: localhost\r\n"
    post = b"POST /v1/completions" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with collecting() as collector:
        options = ("--otlp-traces-endpoint", f"{collector.url}/v1/traces", "--access-log", "--log-format", "json")
        with serving(chat_bundle, *options) as server:
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as client:
                client.sendall(post + b"GET /health" + head + b"Connection: close\r\n\r\n")
                while client.recv(65536):
                    pass
            _, output = server.stop()
    lines = [json.loads(line) for line in output.splitlines()]
    traced, health = [line for line in lines if line["logger"] == ACCESS]
    assert (traced["path"], "trace_id" in traced) == ("/v1/completions", True)
    assert (health["path"], "trace_id" in health) == ("/health", False)


def test_last_spans_are_sent_at_the_end(chat_bundle: Path) -> None:
    with collecting() as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with serving(chat_bundle, variables=variables) as server:
            server.http.post("/v1/completions", json=BODY)
            assert collector.spans() == []
            assert server.stop()[0] == 0
    assert len(collector.spans()) == 4
    assert collector.received[0][0] == "/v1/traces"


@pytest.mark.parametrize("hangs", [False, True], ids=["nobody listens", "collector hangs"])
def test_collector_out_of_reach_delays_no_answer(chat_bundle: Path, hangs: bool) -> None:
    with collecting() as collector:
        collector.seconds = 12.0
        url = collector.url if hangs else "http://127.0.0.1:9"
        with serving(chat_bundle, variables={**SOON, "OTEL_EXPORTER_OTLP_ENDPOINT": url}) as server:
            for _ in range(3):
                assert server.http.post("/v1/completions", json=BODY).status_code == 200
            began = time.monotonic()
            code, output = server.stop()
            assert time.monotonic() - began < 30
    assert code == 0
    assert "Traceback" not in output
