"""Export of spans to a collector with OpenTelemetry's SDK: its provider, and the end of its thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from lopa import __version__
from lopa.runtime.errors import BadInputError
from lopa.serve.tracing.request_spans import RequestSpans

_SERVICE = "lopa-export"
_LAST_SECONDS = 5.0
"""Maximum seconds for sending the last spans at shutdown. A collector may be out of reach."""


@contextmanager
def export_traces(url: str | None) -> Iterator[RequestSpans]:
    """Yield the writer of spans, which a thread sends to the collector at `url`, or by OTEL_ variables if None.

    These variables also set the service's name, the sampler, headers, timeouts and sizes of batches. Spans that cannot
    be sent are dropped and reported in the log. Raises BadInputError for a variable that the SDK refuses.
    """
    try:
        provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    except (ValueError, RuntimeError) as error:
        raise BadInputError(
            f"OpenTelemetry refuses its settings: {error}",
            expected="valid OTEL_ environment variables",
            remedy="correct the variable, or set OTEL_SDK_DISABLED=true for a server without traces",
        ) from error
    try:
        yield RequestSpans(provider.get_tracer(_SERVICE, __version__))
    finally:
        closing = threading.Thread(target=provider.shutdown, name="lopa-traces", daemon=True)
        closing.start()
        closing.join(_LAST_SECONDS)


def _resource() -> Resource:
    """Return the resource of all spans. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
    own = {SERVICE_NAME: _SERVICE, SERVICE_VERSION: __version__}
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})
