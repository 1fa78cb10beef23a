"""The collector that receives traces, from an option and OpenTelemetry's environment variables. This module imports no
library."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from lopa.runtime.errors import BadInputError

DISABLED = "OTEL_SDK_DISABLED"
EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_EXAMPLE = "http://localhost:4318/v1/traces"


@dataclass(frozen=True)
class TracesEndpoint:
    """Destination of traces, and the setting that chose it."""

    url: str | None
    """URL from the option, or None for the variables that OpenTelemetry's library reads itself."""
    source: str
    """The option or the environment variable that requested traces."""


class TracesUnavailableError(Exception):
    """The environment requests traces that this server cannot export. Requests do not depend on traces, so it starts
    without them."""


def endpoint_from_settings(option: str | None, variables: Mapping[str, str]) -> TracesEndpoint | None:
    """Return the destination of traces, or None for a server without traces.

    `option` is the value of --otlp-traces-endpoint, or None. `variables` are the environment, which may be meant for
    other programs too. An empty variable counts as absent. Raises BadInputError for an option that is not a URL, and
    TracesUnavailableError for variables that cannot be followed.
    """
    if option is not None and not _is_url(option):
        raise BadInputError(
            f"--otlp-traces-endpoint {option[:200]!r}",
            expected="the URL of an OpenTelemetry collector",
            remedy=f"write the whole URL, e.g. {_EXAMPLE}",
        )
    source = next((name for name in _ENDPOINTS if variables.get(name)), None)
    if variables.get(DISABLED, "").strip().lower() == "true":
        if option is not None:
            raise TracesUnavailableError(f"{DISABLED} is true")
        return None
    if option is not None:
        return TracesEndpoint(option, "--otlp-traces-endpoint")
    exporters = {name.strip().lower() for name in variables.get(EXPORTER, "").split(",")} - {""}
    if source is None or exporters == {"none"}:
        return None
    if exporters and "otlp" not in exporters:
        raise TracesUnavailableError(f"{EXPORTER}={variables[EXPORTER][:80]} is not supported, only otlp and none")
    protocol = next((name for name in _PROTOCOLS if variables.get(name)), None)
    if protocol is not None and variables[protocol].strip().lower() != _PROTOCOL:
        raise TracesUnavailableError(f"{protocol}={variables[protocol][:80]} is not supported, only {_PROTOCOL}")
    if not _is_url(variables[source]):
        raise TracesUnavailableError(f"{source}={variables[source][:200]} is not a URL such as http://localhost:4318")
    return TracesEndpoint(None, source)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # e.g. a port that is not a number
        return False
