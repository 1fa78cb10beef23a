"""Start of the export of traces. It imports the libraries of the extra `otel` only if traces are requested."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from lopa.runtime.errors import MissingBackendError
from lopa.runtime.extra import extra_needed
from lopa.serve.tracing.traces_endpoint import TracesUnavailableError, endpoint_from_settings

if TYPE_CHECKING:
    from lopa.serve.tracing.request_spans import RequestSpans


def open_traces(
    option: str | None, *, inform: Callable[[str], None], warn: Callable[[str], None]
) -> "AbstractContextManager[RequestSpans | None]":
    """Return a context with the writer of spans, or with None for a server without traces.

    `option` is the value of --otlp-traces-endpoint, or None. OTEL_ variables that cannot be followed only cause a
    warning, since they may be meant for other programs. Raises BadInputError for an invalid option, and
    MissingBackendError if the option needs libraries that are missing.
    """
    try:
        endpoint = endpoint_from_settings(option, os.environ)
    except TracesUnavailableError as error:
        warn(f"no traces are exported: {error}")
        return nullcontext()
    if endpoint is None:
        return nullcontext()
    try:
        with extra_needed("otel", {"opentelemetry"}, "OpenTelemetry's SDK and its OTLP exporter"):
            from lopa.serve.tracing.traces_export import export_traces
    except MissingBackendError as error:
        if option is not None:
            raise
        warn(f"no traces are exported, although {endpoint.source} is set: {error.received}; {error.remedy}")
        return nullcontext()
    inform(f"traces are exported, as set by {endpoint.source}")
    return export_traces(endpoint.url)
