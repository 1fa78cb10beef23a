"""Spans of one request: a span of kind SERVER, and below it the queue, prefill and decode of each choice.

Names and attributes follow OpenTelemetry's conventions for GenAI. They are written out, since OpenTelemetry's library
deprecates its constants: the conventions moved to open-telemetry/semantic-conventions-genai, where they are in
development. Contents of prompts and answers are never exported.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.openai.response_shapes import finish_reason_from_result
from lopa.serve.tracing.request_trace import RequestTrace

End = GenerationResult | Exception | None
"""Result or error of a choice, or None for a choice that has not ended."""
_PROVIDER = "lopa-export"
_OK = 200
_PARENT = TraceContextTextMapPropagator()
_TRACEPARENT = "traceparent"
_OPTIONS = {
    "max_new_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "stop": "gen_ai.request.stop_sequences",
}
"""Attributes of the options that have one."""


@dataclass(frozen=True)
class RequestSpan:
    """The open span of a request, with the clock that converts moments to its timestamps."""

    span: Span
    operation: str
    started: float
    """Start on time.perf_counter's clock."""
    started_ns: int
    """Start in nanoseconds since 1970."""

    @property
    def ids(self) -> Mapping[str, str]:
        """IDs for the log, in lowercase hexadecimal."""
        ids = self.span.get_span_context()
        return {
            "trace_id": f"{ids.trace_id:032x}",
            "span_id": f"{ids.span_id:016x}",
            "trace_flags": f"{ids.trace_flags:02x}",
        }

    def timestamp(self, moment: float) -> int:
        """Return a moment of time.perf_counter's clock in nanoseconds since 1970."""
        return self.started_ns + round((moment - self.started) * 1e9)


class RequestSpans:
    """Writer of the spans of requests."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start(self, operation: str, route: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan:
        """Return the span of a request that arrived now. Its parent is the client's span, if `headers` name one."""
        # The system's clock is read once per request, so that setting it changes no duration. It is read first: if
        # this thread is interrupted between the two, no timestamp lies in the future.
        started_ns, started = time.time_ns(), time.perf_counter()
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _PROVIDER,
            "http.request.method": "POST",
            "http.route": route,
        }
        span = self._tracer.start_span(
            operation, _parent_from_headers(headers), SpanKind.SERVER, attributes, start_time=started_ns
        )
        return RequestSpan(span, operation, started, started_ns)

    def end(self, request: RequestSpan, trace: RequestTrace, *, response_id: str | None, status: int | None) -> None:
        """Write the spans of all choices and end the request's span now.

        `response_id` is the ID of the reply, and `status` the status of the response; None without one.
        """
        span = request.span
        if span.is_recording():
            ends = [_end_of_choice(handle) for handle in trace.handles]
            ended = time.perf_counter()
            for index, (handle, end) in enumerate(zip(trace.handles, ends, strict=True)):
                self._write_phases(request, index, handle, end, ended)
            attributes: dict[str, Any] = {
                "http.response.status_code": status,
                "gen_ai.response.id": response_id if status == _OK else None,
            }
            if trace.requested is not None and trace.config is not None:
                span.update_name(f"{request.operation} {trace.model}")
                attributes |= _request_attributes(trace.requested, trace.config)
                attributes |= _response_attributes(request, trace, trace.requested, ends)
            span.set_attributes({name: value for name, value in attributes.items() if value is not None})
            if trace.error is not None:
                _set_error(span, trace.error)
            span.end(request.timestamp(ended))

    def _write_phases(self, request: RequestSpan, index: int, handle: RequestHandle, end: End, ended: float) -> None:
        """Write the phases that a choice reached. The reason of its end is on the last one."""
        timing = handle.timing
        phases = (
            ("queue", timing.queued, timing.admitted, _no_attributes),
            ("prefill", timing.admitted, timing.prefilled, _prefill_attributes),
            ("decode", timing.prefilled, timing.ended, _decode_attributes),
        )
        reached = [phase for phase in phases if phase[1] is not None]
        for name, began, finished, attributes in reached:
            assert began is not None
            span = self._tracer.start_span(
                name,
                set_span_in_context(request.span),
                attributes={"lopa.choice": index},
                start_time=request.timestamp(began),
            )
            if isinstance(end, GenerationResult):
                span.set_attributes(attributes(end))
            if name == reached[-1][0]:
                _set_end(span, end)
            span.end(request.timestamp(finished or timing.ended or ended))


def _parent_from_headers(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """Return the context of the client's span, or an empty one. Several `traceparent` headers are invalid."""
    carrier: dict[str, list[str]] = {}
    for name, value in headers:
        if name in (b"traceparent", b"tracestate"):
            carrier.setdefault(name.decode(), []).append(value.decode("latin-1"))
    return _PARENT.extract(carrier, Context()) if len(carrier.get(_TRACEPARENT, ())) == 1 else Context()


def _end_of_choice(handle: RequestHandle) -> End:
    if not handle.done:
        return None
    try:
        return handle.result(0)
    except Exception as error:
        return error


def _request_attributes(requested: AnswerRequest, config: GenerationConfig) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.request.model": requested.model,
        "gen_ai.request.stream": requested.stream is not None,
        "gen_ai.request.choice.count": None if requested.copies == 1 else requested.copies,
    }
    given = {option for option, value in requested.options.values.items() if value is not None}
    return attributes | {name: getattr(config, option) for option, name in _OPTIONS.items() if option in given}


def _response_attributes(
    request: RequestSpan, trace: RequestTrace, requested: AnswerRequest, ends: Sequence[End]
) -> dict[str, Any]:
    results = _results(ends)
    if not results:
        return {}
    copies = requested.copies  # choices of the same prompt, whose tokens count once
    prompts = [_results(ends[start : start + copies])[:1] for start in range(0, len(ends), copies)]
    of_prompts = [result for found in prompts for result in found]
    tokens, steps = sum(result.tokens for result in results), sum(result.steps for result in results)
    reasons = [reason for result in results if (reason := _finish_reason(trace, result)) is not None]
    attributes = {
        "gen_ai.response.model": trace.model,
        "gen_ai.response.finish_reasons": reasons or None,
        "gen_ai.usage.input_tokens": sum(len(result.prompt_ids) for result in of_prompts),
        "gen_ai.usage.cache_read.input_tokens": sum(result.cached_tokens for result in of_prompts),
        "gen_ai.usage.output_tokens": tokens,
        "gen_ai.usage.reasoning.output_tokens": trace.reasoning_tokens or None,
        "lopa.steps": steps,
        "lopa.tokens_per_forward": tokens / steps if steps else 0.0,
    }
    if requested.stream is not None:
        texts = [handle.timing.first_text for handle in trace.handles if handle.timing.first_text is not None]
        attributes["gen_ai.response.time_to_first_chunk"] = min(texts) - request.started if texts else None
    return attributes


def _results(ends: Sequence[End]) -> list[GenerationResult]:
    return [end for end in ends if isinstance(end, GenerationResult)]


def _finish_reason(trace: RequestTrace, result: GenerationResult) -> str | None:
    """Return the finish reason of a choice, or None for a cancelled one."""
    recorded = trace.finish_reasons.get(id(result))
    if recorded is None and result.stop_reason != "cancelled":
        return finish_reason_from_result(result)
    return recorded


def _no_attributes(_: GenerationResult) -> dict[str, Any]:
    return {}


def _prefill_attributes(result: GenerationResult) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": len(result.prompt_ids),
        "gen_ai.usage.cache_read.input_tokens": result.cached_tokens,
    }


def _decode_attributes(result: GenerationResult) -> dict[str, Any]:
    return {
        "gen_ai.usage.output_tokens": result.tokens,
        "lopa.steps": result.steps,
        "lopa.tokens_per_forward": result.tokens_per_forward,
        "lopa.branches": str(result.branches),
        "lopa.strategy": result.params.strategy,
    }


def _set_end(span: Span, end: End) -> None:
    if isinstance(end, GenerationResult):
        span.set_attribute("lopa.stop_reason", end.stop_reason)
    elif end is not None:
        _set_error(span, type(end).__name__)


def _set_error(span: Span, reason: str) -> None:
    """Mark a span as failed, without a description: messages of errors may quote the request."""
    span.set_attribute("error.type", reason)
    span.set_status(Status(StatusCode.ERROR))
