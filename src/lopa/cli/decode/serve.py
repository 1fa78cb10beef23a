"""lopa-export serve: serves a bundle over OpenAI's HTTP API until a signal stops it."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from lopa.cli.options.decoding_options import chat_template_option, defaults_from_texts, defaults_option
from lopa.cli.options.devices import device_option
from lopa.cli.options.server_settings import setting_options
from lopa.cli.program.background_call import start_call
from lopa.cli.program.environment import EnvironmentCommand
from lopa.cli.program.grouped_command import PositiveNumber, option
from lopa.cli.program.verbosity import quiet, remove_verbose_handler, verbose
from lopa.cli.terminal.opening import opening_text
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.errors import BadInputError, LopaError
from lopa.runtime.extra import extra_needed
from lopa.runtime.options.option import QUALITY
from lopa.serve.logs import LOG_FORMATS, OPERATOR, LogFormat, log_to_descriptor
from lopa.serve.server_settings import ServerSettings, name_of_bundle
from lopa.serve.setting import ACCESS, settings_of

_MODULES = {"starlette", "uvicorn", "httptools", "prometheus_client"}
_NEVER_EMPTY = ("LOPA_SERVE__API_KEYS", "LOPA_SERVE__REQUIRE_SIGNATURE")
"""Variables of options that protect the server. An empty one must not serve without protection."""
_SETTINGS = tuple(name for name in settings_of(ServerSettings) if name != "devices")  # --device is shared with others
_LOG = logging.getLogger(OPERATOR)
_ANSWERS_CUT = 143
"""Exit code after answers were cut off, the same as for a process ended by SIGTERM."""
_STOPPING = "stopping: running requests finish, new ones are rejected"
_STOPPED_WHILE_OPENING = "stopping before the bundle is open"
_LOG_GROUP = "Log and traces"


@click.command(
    name="serve",
    cls=EnvironmentCommand,
    prefix="LOPA_SERVE",
    examples=(
        "lopa-export serve BUNDLE",
        "lopa-export serve BUNDLE --port 0 --model tiny --max-tokens 64 --default branches=4",
        "lopa-export serve BUNDLE --host 0.0.0.0 --port 0 --api-keys KEYS.txt",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option("--host", default="127.0.0.1", group=ACCESS, help="Address to listen on; 0.0.0.0 for all addresses.")
@option("--port", type=click.IntRange(0, 65535), default=8000, group=ACCESS, help="Port; 0 for any free one.")
@option(
    "--idle-timeout",
    type=PositiveNumber(),
    default=75.0,
    metavar="SECONDS",
    group=ACCESS,
    advanced=True,
    help="Time after which a connection without a request is closed. It must exceed that of a proxy.",
)
@option("--model", metavar="NAME", group=ACCESS, show_default="name of BUNDLE", help="Name of the model.")
@device_option
@setting_options(*_SETTINGS)
@option(
    "--preset",
    metavar="NAME",
    group=QUALITY,
    show_default="the bundle's",
    help="Preset of BUNDLE for requests that name none: fast, balanced, exact, or none.",
)
@defaults_option("Default of a decoding option, which requests override, e.g. branches=4. Repeatable.")
@chat_template_option
@option(
    "--access-log/--no-access-log",
    default=None,
    group=_LOG_GROUP,
    show_default="with --verbose",
    help="Log a line for each request.",
)
@option("--log-format", type=click.Choice(LOG_FORMATS), default="text", group=_LOG_GROUP, help="Format of the log.")
@option(
    "--otlp-traces-endpoint",
    metavar="URL",
    group=_LOG_GROUP,
    show_default="OTEL_EXPORTER_OTLP_ENDPOINT if set, otherwise no traces",
    help="OpenTelemetry collector that receives a trace of each request, e.g. http://localhost:4318/v1/traces.",
)
@option(
    "--require-signature",
    "trusted_keys",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    group=ACCESS,
    help="Refuse a BUNDLE that is not signed, or was changed since. FILE is the signer's public key or root "
    "certificate in PEM. Repeatable.",
)
def command(
    bundle: Path,
    host: str,
    port: int,
    idle_timeout: float,
    model: str | None,
    trusted_keys: tuple[Path, ...],
    preset: str | None,
    defaults: tuple[str, ...],
    chat_template: str | None,
    access_log: bool | None,
    log_format: LogFormat,
    otlp_traces_endpoint: str | None,
    **given: Any,
) -> int:
    """Serve BUNDLE over HTTP with OpenAI's API until SIGTERM or Ctrl-C (docs/how-to/serve.md).

    While BUNDLE opens, the server answers /health with 200, and /ready and requests with 503.

    After the signal the server accepts no new requests and ends when the running ones are answered. A second SIGTERM or
    Ctrl-C ends it at once. At SIGHUP it opens BUNDLE again and changes to it without losing a request.

    Every option can also be set by an environment variable: LOPA_SERVE__ followed by its name, e.g.
    LOPA_SERVE__MAX_TOKENS=512, LOPA_SERVE__ACCESS_LOG=1, LOPA_SERVE__DEVICE="cuda:0 cuda:1", LOPA_SERVE__BUNDLE=FOLDER.
    Options on the command line take precedence.
    """
    for name, value in zip(_NEVER_EMPTY, (given["api_keys"], trusted_keys), strict=True):
        if not value and name in os.environ:  # click ignores an empty variable
            raise click.UsageError(f"the environment variable {name} is empty: set it to FILE or remove it")
    with extra_needed("serve", _MODULES, "the libraries of the server"):
        from lopa.serve.answering.service import PendingService, Service
        from lopa.serve.http.keys import keys_from_file
        from lopa.serve.http.origin_policy import origin_policy_from_options
        from lopa.serve.metrics import ServeMetrics
        from lopa.serve.opened_engine import opened_engine
        from lopa.serve.server_process import is_on_loopback, listening_socket, serve_until_stopped, url_from_socket
        from lopa.serve.tracing.open_traces import open_traces
    settings = ServerSettings(**given)
    keys = None if settings.api_keys is None else keys_from_file(settings.api_keys)
    name = name_of_bundle(bundle) if model is None else model
    metrics = ServeMetrics(name)
    reason = f"opening {name} on {', '.join(settings.devices)}"  # without the path, which clients need not know
    pending = PendingService(limits=settings, metrics=metrics, keys=keys, reason=reason)
    default_values = {**defaults_from_texts(defaults), **({} if preset is None else {"preset": preset})}
    own = {"defaults": default_values, "chat_template": chat_template, "trusted_keys": trusted_keys or None}
    remove_verbose_handler()
    with (
        log_to_descriptor(2, log_format, quiet=quiet(), access=verbose() if access_log is None else access_log),
        _failures_logged(log_format),
        listening_socket(host, port) as listening,
        open_traces(otlp_traces_endpoint, inform=_LOG.info, warn=_LOG.warning) as pending.spans,
    ):
        on_loopback = is_on_loopback(listening)
        url = url_from_socket(listening)
        origin_policy = origin_policy_from_options(
            settings.allow_host, settings.cors, host=host, on_loopback=on_loopback
        )
        if not on_loopback and keys is None:
            _LOG.warning("listening on %s without authentication (see --api-keys)", url)
        # These checks are quick. All others run while the server answers.
        checked = edit_bundle(Bundle.open(bundle), defaults=default_values, chat_template=chat_template)
        settings.check_defaults(checked.manifest.defaults, checked.manifest.presets)

        def open_service() -> Service:
            with ExitStack() as opening:
                path = checked.path if pending.service is None else _complete_bundle(bundle, settings.devices)
                decoder, engine = opening.enter_context(opened_engine(path, settings, _LOG.warning, metrics, **own))
                used = decoder.resolve().preset
                if used is not None:
                    _LOG.info("requests without options use preset %s", used)
                decode_ids, call_format, close = decoder.tokenizer.decode, settings.call_format, opening.pop_all().close
                return Service(
                    engine, name, decode_ids, settings, metrics, keys, call_format=call_format, on_close=close
                )

        def on_reload(error: Exception | None) -> None:
            metrics.reloaded(succeeded=error is None)
            if error is None:
                _LOG.info("%s is now %s", name, pending.opened().engine.decoder.bundle.path)
            else:
                _LOG.error(
                    "error: the bundle is not replaced: %s",
                    error,
                    exc_info=None if isinstance(error, LopaError) else error,
                )

        _LOG.info("%s: %s", url, opening_text(checked, settings.devices))
        completed = serve_until_stopped(
            pending,
            partial(start_call, open_service),
            listening,
            origin_policy=origin_policy,
            drain_seconds=settings.drain,
            idle_seconds=idle_timeout,
            on_ready=lambda: _LOG.info("%s at %s/v1", name, url),
            on_reload=on_reload,
            on_stop=lambda: _LOG.info(_STOPPED_WHILE_OPENING if pending.service is None else _STOPPING),
        )
        if not completed:
            _LOG.error("error: answers were cut after %g seconds; raise --drain", settings.drain)
    return 0 if completed else _ANSWERS_CUT


def _complete_bundle(path: Path, devices: Sequence[str]) -> Path:
    """Return the folder of the bundle at `path`. Raises BadInputError if a file is not as it was exported.

    The opening checks only sizes. A bundle that is copied while a server runs is more often incomplete.
    """
    bundle = Bundle.open(path)
    _LOG.info("SIGHUP: %s", opening_text(bundle, devices))
    altered = bundle.altered_files()
    if altered:
        raise BadInputError(
            f"{', '.join(altered)} in {bundle.path} differ from the digests in its manifest",
            expected="a complete copy of an exported bundle",
            remedy="copy the bundle again into a new folder, change the link, and send SIGHUP again",
        )
    return bundle.path


@contextmanager
def _failures_logged(log_format: LogFormat) -> Iterator[None]:
    """Write the error that ends the server to a JSON log. In a text log the command line writes it."""
    try:
        yield
    except LopaError as error:
        if log_format != "json":
            raise
        _LOG.error("error: %s", error)
        raise SystemExit(error.exit_code) from error
