"""lopa-export generate: text from a bundle, for one prompt as it comes or for a file of prompts."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

from lopa.cli.config_options import config_options, config_overrides
from lopa.cli.device_options import device_options
from lopa.cli.draft_view import DraftView
from lopa.cli.grouped_command import GroupedCommand
from lopa.cli.jsonl import json_from_result, lines_into, prompts_from_lines
from lopa.cli.standard_input import text_from_stdin
from lopa.cli.timeline_file import HostLane, timeline_into
from lopa.cli.trace_file import TraceWriter, trace_into
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.mpi_link import on_mpi, rank_of_job
from lopa.runtime.mpi_server import serve
from lopa.runtime.prompt_ids import Prompt
from lopa.runtime.result import DoneEvent, DraftEvent, GenerationResult, TextEvent

Watch = Callable[[int], Callable[[Step], None]]
"""From the number of a request to what is told of its steps."""


@click.command(name="generate", cls=GroupedCommand)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option(
    "--prompts", type=click.Path(path_type=Path), help='JSON lines: {"prompt": text} or {"prompt_ids": [int]}.'
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Results of --prompts as JSON lines [default: standard output]."
)
@click.option("--chat", is_flag=True, help="Wrap the prompt as a user's message by the bundle's chat template.")
@device_options
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [default: its own choice].")
@click.option("--drafts", is_flag=True, help="Show the answer after every step, undecided positions as blocks.")
@click.option("--trace", "trace", type=click.Path(path_type=Path), help="Write every step to FILE as JSON lines.")
@click.option("--parallel", type=click.IntRange(min=1), help="Prompts of --prompts decoded at once [default: 1].")
@click.option(
    "--timeline",
    "timeline_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write who worked when, for ui.perfetto.dev or chrome://tracing.",
)
@config_options
def command(
    bundle: Path,
    prompt: str | None,
    prompts: Path | None,
    output: Path | None,
    chat: bool,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
    drafts: bool,
    trace: Path | None,
    parallel: int | None,
    timeline_path: Path | None,
    **config_values: Any,
) -> int:
    """Decode PROMPT (or standard input) and print the text as it is committed, or decode a file of prompts.

    Options that are not given come from the bundle, then from the defaults shown. Speed is reported on standard error.
    """
    _check_usage(prompt, prompts, output, chat, drafts, parallel, timeline_path)
    with ExitStack() as opened:
        if on_mpi(devices) and opened.enter_context(rank_of_job()) > 0:
            serve(bundle, devices[0], threads=threads)
            return 0
        timeline = opened.enter_context(timeline_into(timeline_path))
        decoder = opened.enter_context(
            Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout, timeline=timeline)
        )
        config = decoder.config(**config_overrides(config_values))
        host = None if timeline is None else HostLane(timeline)
        with trace_into(trace, decoder.bundle.manifest, config) as tracer:
            watch = partial(_watcher, tracer, host)
            if prompts is not None:
                return _decode_file(decoder, config, prompts, output, watch, parallel or 1)
            text = text_from_stdin() if prompt is None else prompt
            asked: Prompt = text
            if chat:
                asked = decoder.prompt_from_messages([{"role": "user", "content": text}])
            _decode_one(decoder, config, asked, drafts, watch)
            return 0


def _check_usage(
    prompt: str | None,
    prompts: Path | None,
    output: Path | None,
    chat: bool,
    drafts: bool,
    parallel: int | None,
    timeline: Path | None,
) -> None:
    if prompts is not None and (prompt is not None or chat or drafts):
        raise click.UsageError("--prompts goes without PROMPT, --chat and --drafts")
    if output is not None and prompts is None:
        raise click.UsageError("--output goes with --prompts")
    if parallel is not None and prompts is None:
        raise click.UsageError("--parallel goes with --prompts")
    if timeline is not None and (parallel or 1) > 1:
        raise click.UsageError("--timeline goes without --parallel: requests that share a forward share its time")
    if prompt is None and prompts is None and sys.stdin.isatty():
        raise click.UsageError("give a PROMPT, --prompts FILE, or text on standard input")


def _watcher(tracer: TraceWriter | None, host: HostLane | None, request: int) -> Callable[[Step], None]:
    """A function that tells everyone who asked of the steps of `request`, as TraceWriter numbers it."""
    asked = [] if tracer is None else [tracer.request(request)]
    if host is not None:
        asked.insert(0, host.add)  # first, since it takes the step to have just ended

    def tell(step: Step) -> None:
        for each in asked:
            each(step)

    return tell


def _decode_one(decoder: Decoder, config: GenerationConfig, prompt: Prompt, drafts: bool, watch: Watch) -> None:
    with DraftView(enabled=drafts) as view:
        for event in decoder.stream(prompt, config, drafts=drafts, on_step=watch(0)):
            if isinstance(event, DraftEvent):
                view.show(event.step, event.text)
            elif isinstance(event, TextEvent) and not drafts:
                click.echo(event.text, nl=False)
            elif isinstance(event, DoneEvent):
                result = event.result
    click.echo(result.text if drafts else "")
    click.echo(_summary(result), err=True)


def _decode_file(
    decoder: Decoder, config: GenerationConfig, prompts: Path, output: Path | None, watch: Watch, parallel: int
) -> int:
    """Every line in order; a bad one becomes a line with "error", and the exit code is 2 at the end."""
    try:
        text = prompts.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{prompts}: {error}", expected="a UTF-8 file of JSON lines", remedy="check the path and the encoding"
        ) from error
    lines = list(prompts_from_lines(text))

    def on_step(index: int, step: Step) -> None:
        watch(lines[index].number)(step)

    outcomes = decoder.outcomes((line.prompt for line in lines), config, parallel=parallel, on_step=on_step)
    bad = 0
    with lines_into(output) as write:
        for line, outcome in zip(lines, outcomes, strict=True):
            if isinstance(outcome, BadInputError):
                bad += 1
                click.echo(f"error: {prompts} line {line.number}: {outcome}", err=True)
                write(json.dumps({"line": line.number, "error": str(outcome)}, ensure_ascii=False))
            else:
                write(json_from_result(outcome))
    return 2 if bad else 0


def _summary(result: GenerationResult) -> str:
    rate = result.tokens / result.seconds if result.seconds else 0.0
    return (
        f"{result.tokens} tokens in {result.steps} steps, {result.tokens_per_forward:.2f} tokens per forward, "
        f"{rate:.0f} tokens per second, stopped by {result.stop_reason}"
    )
