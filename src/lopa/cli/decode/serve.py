"""lopa-export serve: a bundle behind an API like OpenAI's, until it is asked to stop."""

import logging
from pathlib import Path

import click

from lopa.cli.options.chat_template import chat_template_option
from lopa.cli.options.config import defaults_from_texts, defaults_option
from lopa.cli.options.devices import device_options
from lopa.cli.program.environment import EnvironmentCommand
from lopa.cli.program.verbosity import quiet, remove_verbose_handler, verbose
from lopa.runtime.checked_values import MAX_SECONDS, check_float
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import MAX_NUM_SEQS, QUEUE_LIMIT, Engine
from lopa.runtime.errors import BadInputError
from lopa.runtime.extra import extra_needed
from lopa.runtime.grammar.limits import GrammarLimits
from lopa.runtime.mpi.link import on_mpi
from lopa.serve.limits import ServeLimits
from lopa.serve.logs import LOG_FORMATS, OPERATOR, LogFormat, log_to_descriptor

_MODULES = {"starlette", "uvicorn", "httptools", "prometheus_client"}
_LIMITS = ServeLimits()
_LOG = logging.getLogger(OPERATOR)
_CUT = 143
"""The exit code where answers were cut: that of a process that SIGTERM ended."""


@click.command(name="serve", cls=EnvironmentCommand, prefix="LOPA_SERVE")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0: all there are.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: one that is free.")
@click.option("--model", metavar="NAME", help="What clients call the model [default: the bundle's folder].")
@click.option("--api-keys", type=click.Path(path_type=Path), metavar="FILE", help="Keys to ask for, one a line.")
@click.option("--cors", "origins", multiple=True, metavar="ORIGIN", help="Let pages of this origin in [default: none].")
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A name of this server, as behind a proxy; *: any [default: addresses and localhost, any if not on loopback].",
)
@device_options
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [default: its own choice].")
@click.option("--max-num-seqs", type=int, default=MAX_NUM_SEQS, show_default=True, help="Requests that run at once.")
@click.option("--queue", type=int, default=QUEUE_LIMIT, show_default=True, help="Requests that may wait beside them.")
@defaults_option("Default of a decoding option, which requests override, e.g. branches=4. Repeatable.")
@chat_template_option
@click.option("--max-tokens", type=int, help="Most tokens of an answer [default: what the model has room for].")
@click.option(
    "--max-branches", type=int, default=_LIMITS.max_branches, show_default=True, help="Most branches of a request."
)
@click.option("--max-seconds", type=float, help="Most seconds of a request, waiting included [default: no limit].")
@click.option(
    "--max-choices", type=int, default=_LIMITS.max_choices, show_default=True, help="Most answers to one request."
)
@click.option(
    "--max-body", type=int, default=_LIMITS.max_body, show_default=True, metavar="BYTES", help="Largest request."
)
@click.option(
    "--stall",
    type=float,
    default=_LIMITS.stall_seconds,
    show_default=True,
    metavar="SECONDS",
    help="In which a client has to send its request, and to take each part of its answer.",
)
@click.option(
    "--keep-alive",
    type=float,
    default=_LIMITS.keep_alive_seconds,
    show_default=True,
    metavar="SECONDS",
    help="After so long without text a stream sends a comment.",
)
@click.option(
    "--drain",
    type=float,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for running answers to end after SIGTERM, SIGHUP or Ctrl-C.",
)
@click.option(
    "--access-log/--no-access-log",
    default=None,
    help="Log a line for each request.  [default: with --verbose]",
)
@click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True, help="Form of the log's lines."
)
def command(
    bundle: Path,
    host: str,
    port: int,
    model: str | None,
    api_keys: Path | None,
    origins: tuple[str, ...],
    names: tuple[str, ...],
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
    max_num_seqs: int,
    queue: int,
    defaults: tuple[str, ...],
    chat_template: str | None,
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
) -> int:
    """Answer over HTTP as OpenAI's API does, until SIGTERM, SIGHUP or Ctrl-C (docs/serving.md).

    Then no more requests are taken, and the process ends when those that it has are answered; a second SIGTERM or
    Ctrl-C ends it at once.

    Every option is also read from an environment variable: LOPA_SERVE_ and its name, e.g. LOPA_SERVE_MAX_TOKENS=512 for
    --max-tokens 512, LOPA_SERVE_ACCESS_LOG=1, LOPA_SERVE_DEVICE="cuda:0 cuda:1", LOPA_SERVE_BUNDLE=FOLDER. The command
    line wins.
    """
    with extra_needed("serve", _MODULES, "the libraries that serve"):
        from lopa.serve.answering.service import Service
        from lopa.serve.http.keys import keys_from_file
        from lopa.serve.http.visitors import visitors_of_server
        from lopa.serve.metrics import ServeMetrics
        from lopa.serve.process import is_on_loopback, listening_socket, serve_until_stopped, url_of_socket
    if on_mpi(devices):
        raise BadInputError(
            "--device " + " --device ".join(devices),
            expected="devices of this process",
            remedy="serve from one process, with several --device if there are several",
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
    name = bundle.resolve().name if model is None else model
    metrics = ServeMetrics(name)
    remove_verbose_handler()
    with (
        log_to_descriptor(2, log_format, quiet=quiet(), access=verbose() if access_log is None else access_log),
        listening_socket(host, port) as listening,
    ):
        on_loopback = is_on_loopback(listening)
        visitors = visitors_of_server(names, origins, host=host, on_loopback=on_loopback)
        if not on_loopback and keys is None:
            _LOG.warning("listening on %s without authentication (see --api-keys)", url_of_socket(listening))
        with (
            Decoder.open(
                bundle,
                devices,
                threads=threads,
                device_timeout=device_timeout,
                defaults=defaults_from_texts(defaults),
                chat_template=chat_template,
                grammar_limits=GrammarLimits(),
            ) as decoder,
            Engine(_warmed_up(decoder), max_num_seqs=max_num_seqs, queue_limit=queue, observer=metrics) as engine,
        ):
            metrics.watch(engine)
            whole = serve_until_stopped(
                Service(engine, name, decoder.tokenizer.decode, limits, metrics, keys),
                listening,
                visitors=visitors,
                drain_seconds=drain,
                on_ready=lambda: _LOG.info("%s at %s/v1", name, url_of_socket(listening)),
                on_stop=lambda: _LOG.info("stopping: running answers end, no new ones are taken"),
            )
        if not whole:
            _LOG.error("error: answers were cut: %g seconds were too short for them", drain)
    return 0 if whole else _CUT


def _warmed_up(decoder: Decoder) -> Decoder:
    from lopa.serve.warm_up import warm_up

    warm_up(decoder, lambda text: click.echo(f"warning: {text}", err=True))
    return decoder
