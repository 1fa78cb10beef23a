"""lopa-export serve: serves a bundle over OpenAI's HTTP API until a signal stops it."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import click

from lopa.cli.options.chat_template import chat_template_option
from lopa.cli.options.decoding_options import defaults_from_texts, defaults_option
from lopa.cli.options.devices import device_options
from lopa.cli.program.background_call import start_call
from lopa.cli.program.environment import EnvironmentCommand
from lopa.cli.program.grouped_option import QUALITY, option
from lopa.cli.program.verbosity import quiet, remove_verbose_handler, verbose
from lopa.cli.terminal.opening import opening_text
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.edit import edit_bundle
from lopa.runtime.checked_values import MAX_SECONDS, check_float
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import MAX_NUM_SEQS, QUEUE_LIMIT, Engine
from lopa.runtime.errors import BadInputError, LopaError
from lopa.runtime.extra import extra_needed
from lopa.runtime.grammar.grammar_limits import GrammarLimits
from lopa.runtime.hub.hub_id import hub_id_from_uri
from lopa.runtime.mpi.mpi_link import on_mpi
from lopa.runtime.requests.shared_prefix import PREFIX_CACHE_TOKENS
from lopa.serve.chat.call_format import FORMATS
from lopa.serve.logs import LOG_FORMATS, OPERATOR, LogFormat, log_to_descriptor
from lopa.serve.serve_limits import ServeLimits

_MODULES = {"starlette", "uvicorn", "httptools", "prometheus_client"}
_NEVER_EMPTY = ("LOPA_SERVE_API_KEYS", "LOPA_SERVE_REQUIRE_SIGNATURE")
"""Variables of options that protect the server. An empty one must not serve without protection."""
_LIMITS = ServeLimits()
_LOG = logging.getLogger(OPERATOR)
_ANSWERS_CUT = 143
"""Exit code after answers were cut off, the same as for a process ended by SIGTERM."""
_STOPPING = "stopping: running requests finish, new ones are rejected"
_STOPPED_WHILE_OPENING = "stopping before the bundle is open"
_ACCESS, _LOAD, _LOG_GROUP = "Address and access", "Load and limits", "Log and traces"


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
@option("--host", default="127.0.0.1", group=_ACCESS, help="Address to listen on; 0.0.0.0 for all addresses.")
@option("--port", type=click.IntRange(0, 65535), default=8000, group=_ACCESS, help="Port; 0 for any free one.")
@option("--model", metavar="NAME", group=_ACCESS, show_default="name of the folder", help="Name of the model.")
@option(
    "--api-keys",
    type=click.Path(path_type=Path),
    metavar="FILE",
    group=_ACCESS,
    show_default="no authentication",
    help="File with the accepted API keys, one per line.",
)
@option(
    "--cors",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    group=_ACCESS,
    show_default="none",
    help="Origin whose pages may send requests. Repeatable.",
)
@option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    group=_ACCESS,
    advanced=True,
    show_default="addresses and localhost; any host if not on loopback",
    help="Host name that requests may be addressed to, e.g. behind a proxy; * for any. Repeatable.",
)
@device_options
@option("--max-num-seqs", type=int, default=MAX_NUM_SEQS, group=_LOAD, help="Maximum number of running requests.")
@option(
    "--queue",
    type=int,
    default=QUEUE_LIMIT,
    group=_LOAD,
    help="Maximum number of waiting requests. Several answers of one request may exceed it.",
)
@option(
    "--cache-tokens",
    type=int,
    default=PREFIX_CACHE_TOKENS,
    group=_LOAD,
    help="Maximum number of tokens in the prefix cache, which keeps the keys and values of conversations; 0 for none.",
)
@option(
    "--max-tokens", type=int, group=_LOAD, show_default="model's limit", help="Maximum number of tokens of an answer."
)
@option(
    "--max-seconds",
    type=float,
    group=_LOAD,
    show_default="none",
    help="Maximum duration of a request in seconds, including its time in the queue.",
)
@option(
    "--max-branches",
    type=int,
    default=_LIMITS.max_branches,
    group=_LOAD,
    advanced=True,
    help="Maximum number of branches of a request.",
)
@option(
    "--max-choices",
    type=int,
    default=_LIMITS.max_choices,
    group=_LOAD,
    advanced=True,
    help="Maximum number of answers to one request.",
)
@option(
    "--max-body",
    type=int,
    default=_LIMITS.max_body,
    metavar="BYTES",
    group=_LOAD,
    advanced=True,
    help="Maximum size of a request's body.",
)
@option(
    "--stall",
    type=float,
    default=_LIMITS.stall_seconds,
    metavar="SECONDS",
    group=_LOAD,
    advanced=True,
    help="Maximum time for a client to send its request, and to receive each part of its answer.",
)
@option(
    "--keep-alive",
    type=float,
    default=_LIMITS.keep_alive_seconds,
    metavar="SECONDS",
    group=_LOAD,
    advanced=True,
    help="Interval after which a stream without new text sends a comment.",
)
@option(
    "--drain",
    type=float,
    default=60.0,
    metavar="SECONDS",
    group=_LOAD,
    help="Time for running requests to finish after SIGTERM, SIGHUP or Ctrl-C.",
)
@option(
    "--profile",
    metavar="NAME",
    group=QUALITY,
    show_default="the bundle's",
    help="Profile of BUNDLE for requests that name none: fast, balanced, exact, or none.",
)
@defaults_option("Default of a decoding option, which requests override, e.g. branches=4. Repeatable.")
@chat_template_option
@option(
    "--tool-call-format",
    type=click.Choice(tuple(FORMATS)),
    group=QUALITY,
    advanced=True,
    show_default="recognised from the chat template",
    help="Format in which the model writes tool calls.",
)
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
    group=_ACCESS,
    help="Refuse a BUNDLE that is not signed, or was changed since. FILE is the signer's public key or root "
    "certificate in PEM. Repeatable.",
)
def command(
    bundle: Path,
    host: str,
    port: int,
    model: str | None,
    api_keys: Path | None,
    origins: tuple[str, ...],
    names: tuple[str, ...],
    trusted_keys: tuple[Path, ...],
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
    max_num_seqs: int,
    queue: int,
    cache_tokens: int,
    profile: str | None,
    defaults: tuple[str, ...],
    chat_template: str | None,
    tool_call_format: str | None,
    max_tokens: int | None,
    max_branches: int,
    max_seconds: float | None,
    max_choices: int,
    max_body: int,
    stall: float,
    keep_alive: float,
    drain: float,
    access_log: bool | None,
    log_format: LogFormat,
    otlp_traces_endpoint: str | None,
) -> int:
    """Serve BUNDLE over HTTP with OpenAI's API until SIGTERM, SIGHUP or Ctrl-C (docs/how-to/serve.md).

    While BUNDLE opens, the server answers /health with 200, and /ready and requests with 503.

    After the signal the server accepts no new requests and ends when the running ones are answered. A second SIGTERM or
    Ctrl-C ends it at once.

    Every option can also be set by an environment variable: LOPA_SERVE_ followed by its name, e.g.
    LOPA_SERVE_MAX_TOKENS=512, LOPA_SERVE_ACCESS_LOG=1, LOPA_SERVE_DEVICE="cuda:0 cuda:1", LOPA_SERVE_BUNDLE=FOLDER.
    Options on the command line take precedence.
    """
    for name, given in zip(_NEVER_EMPTY, (api_keys, trusted_keys), strict=True):
        if not given and name in os.environ:  # click ignores an empty variable
            raise click.UsageError(f"the environment variable {name} is empty: set it to FILE or remove it")
    with extra_needed("serve", _MODULES, "the libraries of the server"):
        from lopa.serve.answering.pending_service import PendingService
        from lopa.serve.answering.service import Service
        from lopa.serve.http.keys import keys_from_file
        from lopa.serve.http.origin_policy import origin_policy_from_options
        from lopa.serve.metrics import ServeMetrics
        from lopa.serve.server_process import is_on_loopback, listening_socket, serve_until_stopped, url_from_socket
        from lopa.serve.tracing.open_traces import open_traces
        from lopa.serve.warm_up import warm_up
    if on_mpi(devices):
        raise BadInputError(
            "--device " + " --device ".join(devices),
            expected="devices of this process",
            remedy="serve from one process; repeat --device for several devices",
        )
    drain = check_float("--drain", drain, min=0.0, max=MAX_SECONDS)
    limits = ServeLimits(
        max_tokens=max_tokens,
        max_branches=max_branches,
        max_seconds=max_seconds,
        max_choices=max_choices,
        max_body=max_body,
        stall_seconds=stall,
        keep_alive_seconds=keep_alive,
    )
    keys = None if api_keys is None else keys_from_file(api_keys)
    bundle = bundle.resolve() if hub_id_from_uri(bundle) is None else bundle  # a link may change from here on
    name = bundle.name if model is None else model
    metrics = ServeMetrics(name)
    reason = f"opening {name} on {', '.join(devices)}"  # without the path, which clients need not know
    pending = PendingService(limits=limits, metrics=metrics, keys=keys, reason=reason)
    default_values = {**defaults_from_texts(defaults), **({} if profile is None else {"profile": profile})}
    remove_verbose_handler()
    with (
        log_to_descriptor(2, log_format, quiet=quiet(), access=verbose() if access_log is None else access_log),
        _failures_logged(log_format),
        listening_socket(host, port) as listening,
        open_traces(otlp_traces_endpoint, inform=_LOG.info, warn=_LOG.warning) as pending.spans,
        ExitStack() as opened,
    ):
        on_loopback = is_on_loopback(listening)
        url = url_from_socket(listening)
        origin_policy = origin_policy_from_options(names, origins, host=host, on_loopback=on_loopback)
        if not on_loopback and keys is None:
            _LOG.warning("listening on %s without authentication (see --api-keys)", url)
        # These checks are quick. All others run while the server answers.
        checked = edit_bundle(Bundle.open(bundle), defaults=default_values, chat_template=chat_template)
        limits.check_defaults(checked.manifest.defaults, checked.manifest.profiles)

        def open_service() -> Service:
            with ExitStack() as opening:
                decoder = opening.enter_context(
                    Decoder.open(
                        checked.path,
                        devices,
                        threads=threads,
                        device_timeout=device_timeout,
                        defaults=default_values,
                        chat_template=chat_template,
                        grammar_limits=GrammarLimits(),
                        trusted_keys=trusted_keys or None,
                    )
                )
                warm_up(decoder, _LOG.warning)
                used = decoder.profile_for(decoder.config())
                if used is not None:
                    _LOG.info("requests without options use profile %s", used)
                engine = opening.enter_context(
                    Engine(
                        decoder,
                        max_num_seqs=max_num_seqs,
                        queue_limit=queue,
                        prefix_cache_tokens=cache_tokens,
                        observer=metrics,
                    )
                )
                metrics.watch(engine)
                call_format = None if tool_call_format is None else FORMATS[tool_call_format]
                decode_ids = decoder.tokenizer.decode
                service = Service(engine, name, decode_ids, limits, metrics, keys, call_format=call_format)
                opened.push(opening.pop_all())
            return service

        _LOG.info("%s: %s", url, opening_text(checked, devices))
        completed = serve_until_stopped(
            pending,
            partial(start_call, open_service),
            listening,
            origin_policy=origin_policy,
            drain_seconds=drain,
            on_ready=lambda: _LOG.info("%s at %s/v1", name, url),
            on_stop=lambda: _LOG.info(_STOPPED_WHILE_OPENING if pending.service is None else _STOPPING),
        )
        if not completed:
            _LOG.error("error: answers were cut after %g seconds; raise --drain", drain)
    return 0 if completed else _ANSWERS_CUT


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
