"""lopa-export generate: text from a bundle, for one prompt as it comes or for a file of prompts."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from lopa.cli.batch.decoded_lines import Watch, decode_lines
from lopa.cli.batch.line_reader import ChatWrap, LineReader
from lopa.cli.batch.output_files import OutputFiles
from lopa.cli.batch.progress import BatchProgress
from lopa.cli.batch.prompt_lines import count_of_prompts, lines_of_prompts, prompts_opened
from lopa.cli.batch.resume import Kept, kept_results
from lopa.cli.batch.shard import Shard, shard_from_option
from lopa.cli.decode.branch_tally import BranchTally
from lopa.cli.decode.draft_view import DraftView
from lopa.cli.files.timeline_file import HostLane, timeline_into
from lopa.cli.files.trace_file import TraceWriter
from lopa.cli.options.chat_template import chat_template_option
from lopa.cli.options.config import config_options, config_overrides
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.standard_input import text_from_stdin
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.decoding import Step
from lopa.runtime.files.output_file import OutputLines
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.mpi.link import on_mpi, rank_of_job
from lopa.runtime.mpi.server import serve
from lopa.runtime.requests.result import DoneEvent, DraftEvent, GenerationResult, TextEvent
from lopa.runtime.text.prompt_ids import Prompt


@dataclass(frozen=True)
class _Asked:
    """The options of the command line that are neither the device's nor the decoding's."""

    prompt: str | None
    prompts: Path | None
    output: Path | None
    resume: bool
    shard: Shard | None
    prompt_ids: bool
    chat: bool
    system: str | None
    drafts: bool
    trace: Path | None
    parallel: int | None
    timeline: Path | None

    def check(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.prompts is not None and (self.prompt is not None or self.drafts):
            raise click.UsageError("--prompts goes without PROMPT and --drafts")
        for name, given in (
            ("--output", self.output is not None),
            ("--parallel", self.parallel is not None),
            ("--shard", self.shard is not None),
            ("--no-prompt-ids", not self.prompt_ids),
        ):
            if given and self.prompts is None:
                raise click.UsageError(f"{name} goes with --prompts")
        if self.resume and (self.output is None or self.trace is not None):
            raise click.UsageError("--resume goes with --prompts and --output, and without --trace")
        if self.system is not None and not self.chat:
            raise click.UsageError("--system goes with --chat")
        if self.timeline is not None and (self.parallel or 1) > 1:
            raise click.UsageError("--timeline goes without --parallel: requests that share a forward share its time")
        if self.prompt is None and self.prompts is None and sys.stdin.isatty():
            raise click.UsageError("give a PROMPT, --prompts FILE, or text on standard input")


@click.command(name="generate", cls=GroupedCommand)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    help='JSON lines, - for standard input: {"prompt": text} and more (docs/how-to/prompt-files.md).',
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Results of --prompts as JSON lines [default: standard output]."
)
@click.option("--resume", is_flag=True, help="Keep the results that are in --output and go on behind them.")
@click.option(
    "--shard",
    metavar="K/N",
    callback=shard_from_option,
    help="Answer every N-th prompt of --prompts, from prompt K on. Shards 1/N to N/N answer each prompt once.",
)
@click.option(
    "--prompt-ids/--no-prompt-ids",
    default=True,
    show_default=True,
    help="Whether results of --prompts repeat the ids of their prompts.",
)
@click.option("--chat", is_flag=True, help="Wrap the prompt as a user's message by the bundle's chat template.")
@click.option("--system", metavar="TEXT", help="With --chat: the system's message before the user's.")
@chat_template_option
@device_options
@click.option("--threads", type=click.IntRange(min=1), help="Threads of the engine [default: its own choice].")
@click.option("--drafts", is_flag=True, help="Show the answer after every step, undecided positions as blocks.")
@click.option("--trace", "trace", type=click.Path(path_type=Path), help="Write every step to FILE as JSON lines.")
@click.option("--parallel", type=click.IntRange(min=1), help="Prompts of --prompts decoded at once [default: 1].")
@click.option(
    "--timeline",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write who worked when, for ui.perfetto.dev or chrome://tracing.",
)
@config_options
def command(
    bundle: Path,
    chat_template: str | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
    **values: Any,
) -> int:
    """Decode PROMPT (or standard input) and print the text as it is committed, or decode a file of prompts.

    Options that are not given come from the bundle, then from the defaults shown. Speed is reported on standard error.
    """
    asked = _Asked(**{name: values.pop(name) for name in _Asked.__dataclass_fields__})
    asked.check()
    with ExitStack() as opened:
        if on_mpi(devices) and opened.enter_context(rank_of_job()) > 0:
            serve(bundle, devices[0], threads=threads)
            return 0
        files = OutputFiles.looked_at(asked.prompts, asked.output, asked.trace, asked.timeline)
        files.lock(opened)
        timeline = opened.enter_context(timeline_into(asked.timeline))
        decoder = opened.enter_context(
            Decoder.open(
                bundle,
                devices,
                threads=threads,
                device_timeout=device_timeout,
                timeline=timeline,
                chat_template=chat_template,
            )
        )
        options = config_overrides(values)
        chat = ChatWrap(asked.system) if asked.chat else None
        reader = LineReader(decoder, options, decoder.config(**options), chat, asked.prompt_ids)
        decoder.check_grammar(reader.config)
        host = None if timeline is None else HostLane(timeline)
        tally = BranchTally()
        words = partial(_words_of_run, decoder, reader.config, tally, drawn=None in options.values())
        if asked.prompts is not None:
            return _decode_file(reader, files, asked, host, tally, words)
        text = text_from_stdin() if asked.prompt is None else asked.prompt
        prompt = reader.prompt_of_text(text)
        trace = files.open_trace(opened)
        watch = _watch(_begun(trace, reader), host, tally)
        _decode_one(decoder, reader.config, prompt, asked.drafts, watch, words)
        return 0


def _watch(tracer: TraceWriter | None, host: HostLane | None, tally: BranchTally) -> Watch:
    """Tells everyone who asked of the steps of a request, numbered as TraceWriter does."""

    def of_request(number: int) -> Callable[[Step], None]:
        asked = [tally.add] if tracer is None else [tracer.request(number), tally.add]
        if host is not None:
            asked.insert(0, host.add)  # first, since it takes the step to have just ended

        def tell(step: Step) -> None:
            for each in asked:
                each(step)

        return tell

    return of_request


def _begun(trace: OutputLines | None, reader: LineReader) -> TraceWriter | None:
    """What the file held goes, and the header comes."""
    if trace is None:
        return None
    trace.begin()
    decoder = reader.decoder
    return TraceWriter(trace.write, decoder.bundle.manifest, reader.config, decoder.plan(reader.config))


def _decode_one(
    decoder: Decoder,
    config: GenerationConfig,
    prompt: Prompt,
    drafts: bool,
    watch: Watch,
    words: Callable[[], str],
) -> None:
    with DraftView(enabled=drafts) as view:
        for event in decoder.stream(prompt, config, drafts=drafts, on_step=watch(0)):
            if isinstance(event, DraftEvent):
                view.show(event.step, event.text)
            elif isinstance(event, TextEvent) and not drafts:
                click.echo(event.text, nl=False)
            elif isinstance(event, DoneEvent):
                result = event.result
    click.echo(result.text if drafts else "")
    if not quiet():
        click.echo(f"{_summary(result)}, {words()}", err=True)


def _decode_file(
    reader: LineReader,
    files: OutputFiles,
    asked: _Asked,
    host: HostLane | None,
    tally: BranchTally,
    words: Callable[[], str],
) -> int:
    """Every line in order; a bad one becomes a line with "error", and the exit code is 2 at the end."""
    assert asked.prompts is not None
    with ExitStack() as opened:
        source = opened.enter_context(prompts_opened(asked.prompts))
        shard = asked.shard or Shard()
        total = shard.size(count_of_prompts(source, asked.prompts))
        lines = shard.lines(lines_of_prompts(source, asked.prompts, reader.decoded_with))
        kept = Kept()
        if asked.resume and files.output is not None:
            kept = kept_results(files.output, lines)
        output, trace = files.open_output(opened), files.open_trace(opened)
        output.begin(kept.end)
        watch = _watch(_begun(trace, reader), host, tally)
        shown = asked.output is not None or not sys.stdout.isatty()
        progress = opened.enter_context(BatchProgress(total, kept, shown=shown))
        try:
            decode_lines(
                lines,
                reader,
                output.write,
                watch=watch,
                parallel=asked.parallel or 1,
                progress=progress,
                source=str(asked.prompts),
            )
        except BaseException:
            if files.output is not None and files.output.regular and not quiet():
                progress.say(f"{asked.output} has every result so far: --resume goes on behind them")
            raise
        finally:
            if not quiet():
                progress.say(f"{progress.sum_up()}, {words()}")
        return 2 if progress.errors else 0


def _summary(result: GenerationResult) -> str:
    rate = result.tokens / result.seconds if result.seconds else 0.0
    return (
        f"{result.tokens} tokens in {result.steps} steps, {result.tokens_per_forward:.2f} tokens per forward, "
        f"{rate:.0f} tokens per second, stopped by {result.stop_reason}"
    )


def _words_of_run(decoder: Decoder, config: GenerationConfig, tally: BranchTally, *, drawn: bool) -> str:
    """Branches and why, and the seed where one matters; `drawn` says whether it was drawn for this run."""
    choice = decoder.branches_for(config)
    counted = "1 branch" if choice.number == 1 else f"{choice.number} branches"
    if choice.number == "auto":
        counted = tally.summary()
    seed = f"seed {config.seed}, " if drawn or decoder.plan(config).temperature > 0 else ""
    return f"{seed}{counted}: {choice.reason}"
