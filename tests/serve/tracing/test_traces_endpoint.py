"""Destination of traces: the option, OpenTelemetry's variables, and settings that cannot be followed."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.serve.servers import STOPPING, serving

from lopa.runtime.errors import BadInputError
from lopa.serve.tracing.traces_endpoint import TracesEndpoint, TracesUnavailableError, endpoint_from_settings

BASE, TRACES = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
OPTION = "--otlp-traces-endpoint"
URL = "http://collector:4318"
WITHOUT_LIBRARY = (
    "-c",
    "import sys; sys.modules['opentelemetry.sdk.trace'] = None; from lopa.cli.main import main; main(sys.argv[1:])",
)


@pytest.mark.parametrize(
    ("option", "variables", "expected"),
    [
        (None, {}, None),
        (None, {"OTEL_SERVICE_NAME": "x", BASE: "", TRACES: ""}, None),
        (None, {BASE: URL, TRACES: f"{URL}/v1/traces"}, TracesEndpoint(None, TRACES)),
        (None, {TRACES: "https://[::1]:4318/x", BASE: "not read"}, TracesEndpoint(None, TRACES)),
        (URL, {BASE: "http://other", "OTEL_TRACES_EXPORTER": "none"}, TracesEndpoint(URL, OPTION)),
        (None, {BASE: URL, "OTEL_SDK_DISABLED": " True"}, None),
        (None, {BASE: URL, "OTEL_TRACES_EXPORTER": "console, otlp"}, TracesEndpoint(None, BASE)),
        (None, {BASE: URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, TracesEndpoint(None, BASE)),
        (
            None,
            {BASE: URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"},
            TracesEndpoint(None, BASE),
        ),
    ],
)
def test_endpoint(option: str | None, variables: Mapping[str, str], expected: TracesEndpoint | None) -> None:
    assert endpoint_from_settings(option, variables) == expected


@pytest.mark.parametrize(
    ("option", "variables", "named"),
    [
        (URL, {"OTEL_SDK_DISABLED": "true"}, "OTEL_SDK_DISABLED"),
        (None, {BASE: URL, "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin"),
        (None, {BASE: URL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
        (None, {BASE: URL, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "TRACES_PROTOCOL=http/json"),
        (None, {BASE: "collector:4317"}, f"{BASE}=collector:4317"),
        (None, {BASE: "http://a:port"}, BASE),
    ],
)
def test_variables_that_cannot_be_followed(option: str | None, variables: Mapping[str, str], named: str) -> None:
    with pytest.raises(TracesUnavailableError, match=named):
        endpoint_from_settings(option, variables)


@pytest.mark.parametrize("option", ["", "collector:4318", "ftp://collector", "http://", "http://a:b", "http://[::1"])
def test_option_is_a_url(option: str) -> None:
    with pytest.raises(BadInputError, match="otlp-traces-endpoint"):
        endpoint_from_settings(option, {})


def test_missing_library_ends_a_server_whose_option_needs_it(chat_bundle: Path) -> None:
    command = [sys.executable, *WITHOUT_LIBRARY, "serve", chat_bundle, "--port", "0", OPTION, URL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "opentelemetry is not installed" in done.stderr
    assert "opentelemetry-sdk" in done.stderr or "[otel]" in done.stderr  # the second in a tree that is not installed


def test_variables_meant_for_other_programs_only_warn(chat_bundle: Path) -> None:
    variables = {BASE: "http://localhost:1"}
    with serving(chat_bundle, program=WITHOUT_LIBRARY, variables=variables) as server:
        assert server.head[0].startswith("warning: no traces are exported")
        assert f"although {BASE} is set: opentelemetry is" in server.head[0]
        assert server.http.post("/v1/completions", json={"model": "tiny", "prompt": "2", "max_tokens": 1}).is_success
        assert server.stop() == (0, f"{STOPPING}\n")


def test_server_without_traces_imports_no_library_of_them(chat_bundle: Path) -> None:
    program = (
        "import sys; from lopa.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print('loaded', [name for name in sys.modules if name.startswith('opentelemetry')], file=sys.stderr)"
    )
    with serving(chat_bundle, program=("-c", program)) as server:
        assert server.stop() == (0, f"{STOPPING}\nloaded []\n")


def test_setting_that_the_sdk_refuses_is_an_error(chat_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    command = [sys.executable, "-m", "lopa.cli.main", "serve", chat_bundle, "--port", "0", OPTION, URL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "OpenTelemetry refuses its settings: max_queue_size" in done.stderr
