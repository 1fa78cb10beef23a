"""Spans of a real server's requests, read from the SDK's in-memory exporter."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from tests.serve.servers import until
from tests.serve.tracing.traced_server import WAIT, TracedServer, traced_server

from lopa.runtime.requests.handle import RequestHandle

PHASES = ["queue", "prefill", "decode"]
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "What is zebra plus 3?", "max_tokens": 40}
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "zebra 2 + 3?"}], "max_tokens": 40}
LONG: dict[str, Any] = {**COMPLETION, "max_tokens": 1500, "lopa": {"strategy": "vanilla", "stop_at_eos": False}}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(chat_bundle: Path) -> Iterator[TracedServer]:
    with traced_server(chat_bundle) as started:
        yield started


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def duration(span: ReadableSpan) -> float:
    """Return the seconds of an ended span."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def check_times(server: ReadableSpan, *phases: ReadableSpan) -> None:
    """Check that the phases of one choice follow each other without a gap inside the request's span."""
    assert server.start_time is not None
    assert server.end_time is not None
    begins, ends = [each.start_time or 0 for each in phases], [each.end_time or 0 for each in phases]
    assert server.start_time <= begins[0]
    assert ends[:-1] == begins[1:]
    assert all(begin <= end for begin, end in zip(begins, ends, strict=True))
    assert ends[-1] <= server.end_time


def test_spans_of_a_completion(server: TracedServer) -> None:
    body = {
        **COMPLETION,
        "temperature": 1,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["\n\n", "###"],
        "lopa": {"top_k": 5, "branches": 3, "stop_at_eos": False},
    }
    before = time.time_ns()
    answer = server.http.post(COMPLETIONS, json=body).json()
    after = time.time_ns()
    [[span, *phases]] = server.spans()
    usage = answer["usage"]
    assert (span.name, span.kind, span.parent, span.status.status_code) == (
        "text_completion tiny",
        SpanKind.SERVER,
        None,
        StatusCode.UNSET,
    )
    assert attributes(span) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "lopa-export",
        "http.request.method": "POST",
        "http.route": COMPLETIONS,
        "http.response.status_code": 200,
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 40,
        "gen_ai.request.temperature": 1.0,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("\n\n", "###"),
        "gen_ai.request.stream": False,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": (answer["choices"][0]["finish_reason"],),
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
        "lopa.steps": usage["lopa"]["steps"],
        "lopa.tokens_per_forward": usage["lopa"]["tokens_per_forward"],
    }
    assert isinstance(attributes(span)["gen_ai.request.temperature"], float)
    assert [(each.name, each.kind) for each in phases] == [(name, SpanKind.INTERNAL) for name in PHASES]
    queue, prefill, decode = map(attributes, phases)
    assert queue == {"lopa.choice": 0}
    assert prefill == {
        "lopa.choice": 0,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    assert decode == {
        "lopa.choice": 0,
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "lopa.steps": usage["lopa"]["steps"],
        "lopa.tokens_per_forward": usage["lopa"]["tokens_per_forward"],
        "lopa.branches": "3",
        "lopa.strategy": "lopa",
        "lopa.stop_reason": answer["choices"][0]["lopa"]["stop_reason"],
    }
    check_times(span, *phases)
    assert before <= (span.start_time or 0)
    assert (phases[-1].end_time or 0) <= after, "the same clock as the client's"


def test_parent_is_the_client_s_span(server: TracedServer) -> None:
    trace, parent = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
    valid = f"00-{trace:032x}-{parent:016x}-01"
    server.http.post(CHATS, json=CHAT, headers={"traceparent": valid, "tracestate": "vendor=1"})
    [[span, *phases]] = server.spans()
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id, span.parent.is_remote) == (trace, parent, True)
    assert {each.context.trace_id for each in phases if each.context is not None} == {trace}
    assert span.context.trace_state.get("vendor") == "1"
    for invalid in (b"", b"00-0-0-01", valid.upper().encode(), f"00-{0:032x}-{parent:016x}-01".encode(), b"\xff\\N"):
        headers = [(b"traceparent", invalid), (b"user-agent", invalid)]
        assert server.http.post(CHATS, json=CHAT, headers=headers).status_code == 200
        [[span, *_]] = server.spans()
        assert span.parent is None
    server.http.post(CHATS, json=CHAT, headers=[("traceparent", valid), ("traceparent", valid)])
    assert server.spans()[0][0].parent is None


def test_stream_ends_its_span_and_reports_the_first_text(server: TracedServer) -> None:
    began = time.perf_counter()
    with server.http.stream("POST", CHATS, json={**CHAT, "stream": True}) as response:
        text = response.read().decode()
    seconds = time.perf_counter() - began
    [[span, *phases]] = server.spans()
    parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    found = attributes(span)
    assert span.name == "chat tiny"
    assert (found["gen_ai.request.stream"], found["gen_ai.response.id"]) == (True, parts[0]["id"])
    assert found["gen_ai.response.finish_reasons"] == (parts[-1]["choices"][0]["finish_reason"],)
    assert 0 < found["gen_ai.response.time_to_first_chunk"] < seconds
    check_times(span, *phases)
    assert "error.type" not in found


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["one decode for both", "two decodes"])
def test_every_choice_has_its_phases(server: TracedServer, temperature: float) -> None:
    body = {**COMPLETION, "prompt": ["2 + 2", "zebra"], "n": 2, "temperature": temperature, "seed": 3}
    answer = server.http.post(COMPLETIONS, json=body).json()
    [[span, *phases]] = server.spans()
    found = attributes(span)
    assert found["gen_ai.request.choice.count"] == 2
    assert found["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert found["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
    assert found["gen_ai.response.finish_reasons"] == tuple(each["finish_reason"] for each in answer["choices"])
    assert found["lopa.steps"] == sum(each["lopa"]["steps"] for each in answer["choices"])
    for choice in answer["choices"]:
        own = [each for each in phases if attributes(each)["lopa.choice"] == choice["index"]]
        assert [each.name for each in own] == PHASES
        assert attributes(own[-1])["lopa.steps"] == choice["lopa"]["steps"]
        check_times(span, *own)


def test_waiting_is_in_the_queue_span(server: TracedServer) -> None:
    """Fill both places of the engine. A further request waits until one of them is cancelled."""
    running = [server.engine.submit("1", max_new_tokens=1500, strategy="vanilla", stop_at_eos=False) for _ in range(2)]
    until(lambda: server.engine.status.running == 2)
    waiting = threading.Thread(target=server.http.post, args=(COMPLETIONS,), kwargs={"json": COMPLETION})
    waiting.start()
    until(lambda: server.engine.status.waiting == 1)
    began = time.perf_counter()
    time.sleep(0.3)
    waited = time.perf_counter() - began
    for handle in running:
        handle.cancel()
    waiting.join()
    [[_, queue, *_]] = server.spans()
    assert queue.name == "queue"
    assert duration(queue) >= waited


def test_reused_prompt_counts_as_cached(server: TracedServer) -> None:
    body = {**COMPLETION, "prompt": "an equal prompt twice", "lopa": {"attention": "block_causal"}}
    for _ in range(2):
        usage = server.http.post(COMPLETIONS, json=body).json()["usage"]
    [[first, *_], [second, _, prefill, _]] = server.spans(2)
    assert attributes(first)["gen_ai.usage.cache_read.input_tokens"] == 0
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert attributes(second)["gen_ai.usage.cache_read.input_tokens"] == cached
    assert attributes(prefill)["gen_ai.usage.cache_read.input_tokens"] == cached


@pytest.mark.parametrize(
    ("body", "status", "reason", "name"),
    [
        ({**COMPLETION, "n": 0}, 400, "bad_request", "text_completion"),
        ({**COMPLETION, "model": "zebra"}, 404, "model_not_found", "text_completion"),
        ({**COMPLETION, "prompt": "zebra " * 5000}, 400, "context_length_exceeded", "text_completion tiny"),
        ({**COMPLETION, "temperature": "zebra"}, 400, "bad_request", "text_completion"),
    ],
)
def test_rejected_requests(server: TracedServer, body: dict[str, Any], status: int, reason: str, name: str) -> None:
    assert server.http.post(COMPLETIONS, json=body).status_code == status
    [[span, *phases]] = server.spans()
    assert (span.name, phases) == (name, [])
    assert (attributes(span)["error.type"], attributes(span)["http.response.status_code"]) == (reason, status)
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert "gen_ai.response.id" not in attributes(span)
    assert "zebra" not in span.to_json()


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_disconnects(server: TracedServer, stream: bool) -> None:
    chat = json.dumps({**CHAT, "max_tokens": 1500, "lopa": LONG["lopa"], "stream": stream}).encode()
    head = f"POST {CHATS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(chat)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as client:
        client.sendall(head + chat)
        until(lambda: server.engine.status.running == 1)
        time.sleep(0.3)
    [[span, *phases]] = server.spans()
    assert attributes(span)["error.type"] == "client_disconnected"
    assert attributes(span)["http.response.status_code"] == (200 if stream else 499)
    assert span.status.status_code is StatusCode.ERROR
    assert [each.name for each in phases] == PHASES
    assert attributes(phases[-1])["lopa.stop_reason"] == "cancelled"
    assert 0 < attributes(phases[-1])["lopa.steps"] < 1500
    assert "gen_ai.response.finish_reasons" not in attributes(span)
    check_times(span, *phases)


def test_choice_that_ends_in_the_queue(server: TracedServer) -> None:
    running = [server.engine.submit("1", max_new_tokens=1500, strategy="vanilla", stop_at_eos=False) for _ in range(2)]
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(COMPLETIONS, json=COMPLETION, timeout=0.4)
    [[span, queue]] = server.spans()
    assert (queue.name, attributes(queue)) == ("queue", {"lopa.choice": 0, "lopa.stop_reason": "cancelled"})
    check_times(span, queue)
    for handle in running:
        handle.cancel()
    until(lambda: server.engine.status.running == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_request_that_fails_while_it_runs(server: TracedServer, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    put_events = RequestHandle.put_events

    def fail_later(handle: RequestHandle, events: Any) -> None:
        put_events(handle, events)
        if handle.timing.prefilled is not None:
            raise ValueError("zebra")

    monkeypatch.setattr(RequestHandle, "put_events", fail_later)
    answer = server.http.post(COMPLETIONS, json={**LONG, "stream": stream})
    monkeypatch.undo()
    assert answer.status_code == (200 if stream else 500)
    [[span, *phases]] = server.spans()
    assert attributes(span)["error.type"] == "internal_error"
    assert [each.name for each in phases] == PHASES
    assert attributes(phases[-1]) == {"lopa.choice": 0, "error.type": "ValueError"}
    assert phases[-1].status.status_code is StatusCode.ERROR
    check_times(span, *phases)
    assert "zebra" not in "".join(each.to_json() for each in (span, *phases))


def test_contents_queries_and_headers_are_never_exported(server: TracedServer) -> None:
    for path, body in ((COMPLETIONS, COMPLETION), (CHATS, CHAT)):
        for stream in (False, True):
            forced = {"regex": "quagga [0-9]{4}", "block_size": 8}
            content = {**body, "stream": stream, "lopa": forced}
            headers = {"user-agent": "zebra", "x-api-key": "zebra"}
            answer = server.http.post(path, json=content, params={"key": "zebra"}, headers=headers)
            assert "quagga" in answer.text or stream, answer.text
    exported = "".join(each.to_json() for spans in server.spans(4) for each in spans)
    assert "zebra" not in exported
    assert "quagga" not in exported


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 120}),
        ("/v1/responses", {"input": "zebra 2 + 3?", "max_output_tokens": 120}),
    ],
)
def test_other_protocols(server: TracedServer, path: str, body: dict[str, Any], stream: bool) -> None:
    answer = server.http.post(path, json={"model": "tiny", "stream": stream, **body})
    assert answer.status_code == 200, answer.text
    [[span, *phases]] = server.spans()
    found = attributes(span)
    assert (span.name, found["http.route"], found["gen_ai.request.stream"]) == ("chat tiny", path, stream)
    assert found["gen_ai.request.max_tokens"] == 120
    assert found["gen_ai.response.id"].startswith("msg_" if path == "/v1/messages" else "resp_")
    assert found["gen_ai.response.id"] in answer.text
    assert found["gen_ai.response.finish_reasons"] in (("stop",), ("length",))
    assert [each.name for each in phases] == PHASES
    check_times(span, *phases)
    server.http.post(path, json={"model": "tiny", "stream": stream, **body, "temperature": "zebra"})
    [[span]] = server.spans()
    assert (span.name, attributes(span)["error.type"]) == ("chat", "bad_request")


def test_only_endpoints_that_answer_prompts_have_spans(server: TracedServer) -> None:
    for method, path in (
        ("GET", "/health"),
        ("GET", "/metrics"),
        ("GET", "/v1/models"),
        ("POST", "/v1/messages/count_tokens"),
    ):
        server.http.request(method, path)
    server.http.get(COMPLETIONS)
    server.http.post(COMPLETIONS, json=COMPLETION)
    assert len(server.spans(1)) == 1


def test_pipelined_requests_have_spans_of_their_own(server: TracedServer) -> None:
    body = json.dumps(COMPLETION).encode()
    head = b" HTTP/1.1\r\nHost: localhost\r\n"
    post = b"POST " + COMPLETIONS.encode() + head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    bad = b"POST " + COMPLETIONS.encode() + head + b"Content-Length: 2\r\n\r\n{}"
    last = b"GET /v1/nothing" + head + b"Connection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT) as client:
        client.sendall(post + bad + post + last)
        received = b""
        while part := client.recv(65536):
            received += part
    assert received.count(b"HTTP/1.1 ") == 4
    found = server.spans(3)
    assert [len(spans) for spans in found] == [4, 1, 4]
    assert [attributes(spans[0]).get("error.type") for spans in found] == [None, "bad_request", None]
    assert len({spans[0].context.trace_id for spans in found if spans[0].context is not None}) == 3


def test_tokens_of_reasoning(text_bundle: Path) -> None:
    body = {**CHAT, "chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 6}
    with traced_server(text_bundle) as started:
        usage = started.http.post(CHATS, json=body).json()["usage"]
        [[span, *_]] = started.spans()
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert reasoning > 0
    assert attributes(span)["gen_ai.usage.reasoning.output_tokens"] == reasoning
