"""lopa-export generate: prints the answer to one prompt during decoding, or answers a file of prompts."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lopa.cli.batch.output_files import OutputFiles
from lopa.cli.batch.prompt_lines import (
    ChatFormat,
    Shard,
    ShardType,
    count_of_prompts,
    lines_of_prompts,
    open_prompts,
)
from lopa.cli.decode.answer_view import result_of_events, summary_of_result
from lopa.cli.files.step_log import StepCallbacks, StepLog
from lopa.cli.options.decoding_options import DecodingCommand, chat_template_option, checked_overrides, config_options
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import DEVICE, INPUT, OUTPUT, option
from lopa.cli.program.standard_streams import text_from_stdin
from lopa.cli.program.verbosity import quiet, verbose
from lopa.cli.terminal.opening import open_decoder
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.device_families import on_mpi
from lopa.runtime.files.output_file import OutputLines
from lopa.runtime.generation_config import GenerationConfig, ResolvedOptions
from lopa.runtime.mpi.mpi_link import rank_of_job
from lopa.runtime.mpi.mpi_server import serve
from lopa.runtime.requests.result import Event, GenerationResult
from lopa.runtime.strategy import strategy_from_name

if TYPE_CHECKING:
    from lopa.cli.batch.line_reader import LineReader


@dataclass(frozen=True)
class _Arguments:
    """The options of the command line that concern neither the device nor decoding."""

    prompt: str | None
    prompts: Path | None
    output: Path | None
    resume: bool
    shard: Shard | None
    prompt_ids: bool
    chat: bool
    system: str | None
    drafts: bool
    step_log: Path | None
    max_num_seqs: int | None

    def check(self) -> None:
        """Raise UsageError for options that exclude each other, or that need a missing option."""
        if self.prompts is not None and (self.prompt is not None or self.drafts):
            raise click.UsageError("--prompts cannot be combined with PROMPT or --drafts")
        for name, given in (
            ("--output", self.output is not None),
            ("--max-num-seqs", self.max_num_seqs is not None),
            ("--shard", self.shard is not None),
            ("--no-prompt-ids", not self.prompt_ids),
        ):
            if given and self.prompts is None:
                raise click.UsageError(f"{name} needs --prompts")
        if self.resume and (self.output is None or self.step_log is not None):
            raise click.UsageError("--resume needs --prompts and --output, and cannot be combined with --step-log")
        if self.system is not None and not self.chat:
            raise click.UsageError("--system needs --chat")
        if self.prompt is None and self.prompts is None and sys.stdin.isatty():
            raise click.UsageError("give a PROMPT, --prompts FILE, or text on standard input")


_QUESTION = '"Question: There are 4 bags, and each holds 5 eggs. How many eggs are there now? Answer:"'
"""Prompt of the examples, which the embedded toy answers."""


@click.command(
    name="generate",
    cls=DecodingCommand,
    examples=(
        f"lopa-export generate BUNDLE {_QUESTION}",
        f"lopa-export generate BUNDLE {_QUESTION} --drafts --branches 4",
        f'lopa-export generate BUNDLE {_QUESTION} --regex " [^=]+ = [0-9]+ eggs" --max-new-tokens 32',
        "lopa-export generate BUNDLE --prompts PROMPTS.jsonl --output ANSWERS.jsonl --resume",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    group=INPUT,
    help='File of JSON lines such as {"prompt": text}, or - for standard input (docs/how-to/prompt-files.md).',
)
@option(
    "--shard",
    type=ShardType(),
    group=INPUT,
    advanced=True,
    help="Answer every N-th prompt of --prompts, starting with prompt K. Shards 1/N to N/N answer each prompt once.",
)
@option("--chat", is_flag=True, group=INPUT, help="Format the prompt as a user's message with the chat template.")
@option("--system", metavar="TEXT", group=INPUT, advanced=True, help="System message before the user's. Needs --chat.")
@chat_template_option
@option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    group=OUTPUT,
    show_default="standard output",
    help="File for the results of --prompts, as JSON lines.",
)
@option("--resume", is_flag=True, group=OUTPUT, help="Keep the results in --output and continue after them.")
@option("--drafts", is_flag=True, group=OUTPUT, help="Show the answer after every step, with masked positions as ░.")
@option(
    "--prompt-ids/--no-prompt-ids",
    default=True,
    group=OUTPUT,
    advanced=True,
    help="Include the token ids of the prompt in each result of --prompts.",
)
@option(
    "--step-log",
    "step_log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    group=OUTPUT,
    advanced=True,
    help="Write a record of every step to FILE, as JSON lines.",
)
@device_options
@option(
    "--max-num-seqs",
    type=click.IntRange(min=1),
    group=DEVICE,
    show_default="1",
    help="Number of prompts of --prompts decoded at once.",
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
    """Decode PROMPT, or standard input, and print the text as it is committed; or decode a file of prompts.

    Options that are not given come from the bundle, otherwise from the defaults shown. A summary with the speed goes to
    standard error.
    """
    arguments = _Arguments(**{name: values.pop(name) for name in _Arguments.__dataclass_fields__})
    arguments.check()
    with ExitStack() as opened:
        if on_mpi(devices) and opened.enter_context(rank_of_job()) > 0:
            serve(bundle, devices[0], threads=threads)
            return 0
        files = OutputFiles.from_options(arguments.prompts, arguments.output, arguments.step_log)
        files.lock(opened)
        decoder = opened.enter_context(
            open_decoder(
                bundle,
                devices,
                threads=threads,
                device_timeout=device_timeout,
                chat_template=chat_template,
            )
        )
        options = checked_overrides(values, decoder.resolve)
        chat = ChatFormat(arguments.system) if arguments.chat else None
        config = GenerationConfig.from_mapping(options)
        tally = Counter[int]()
        if arguments.prompts is not None:
            # It reads the formats of the server, which one prompt does not need.
            from lopa.cli.batch.line_reader import LineReader

            reader = LineReader(decoder, options, decoder.check_grammar(config), chat, arguments.prompt_ids)
            summary = partial(_summary_of_run, reader.resolved, tally, reader.resolved.config.seed, reason=True)
            return _decode_file(reader, files, arguments, tally, summary)
        text = text_from_stdin() if arguments.prompt is None else arguments.prompt
        prompt = text if chat is None else chat.chat(text)
        prepared = decoder.prepare(prompt, config, drafts=arguments.drafts)
        tracer = _step_log(files.open_step_log(opened), decoder, prepared.resolved)
        callback = _step_callbacks(tracer, tally)(0)
        result = _print_answer(decoder.stream(prepared, on_step=callback), drafts=arguments.drafts)
        if not quiet():
            looks_ahead = config.strategy is not None and strategy_from_name(config.strategy).looks_ahead
            seed, reason = prepared.resolved.params.seed, looks_ahead or verbose()
            of_run = _summary_of_run(prepared.resolved, tally, seed, reason=reason)
            click.echo(f"{summary_of_result(result)}, {of_run}", err=True)
        return 0


def _step_callbacks(tracer: StepLog | None, tally: Counter[int]) -> StepCallbacks:
    """Return a function from a request's number (see StepLog) to the callback for its steps."""

    def of_request(number: int) -> Callable[[Step], None]:
        trace = None if tracer is None else tracer.request(number)

        def on_step(step: Step) -> None:
            if trace is not None:
                trace(step)
            tally[len(step.branches)] += 1

        return on_step

    return of_request


def _step_log(step_log: OutputLines | None, decoder: Decoder, resolved: ResolvedOptions) -> StepLog | None:
    """Empty the file, write the header and return the writer. Return None without a step log."""
    if step_log is None:
        return None
    step_log.begin()
    return StepLog(step_log.write, decoder.bundle.manifest, resolved.config, resolved.params)


def _print_answer(events: Iterable[Event], *, drafts: bool) -> GenerationResult:
    """Print the text of an answer as it arrives, or its drafts, and return its result."""
    result = result_of_events(events, streams=not drafts, drafts=drafts)
    click.echo(result.text if drafts else "")
    if not quiet():
        for choice in () if result.scores is None else result.scores.choices:
            click.echo(f"{choice.probability:.4f} {choice.text!r}, log-probability {choice.logprob:.3f}", err=True)
    return result


def _decode_file(
    reader: "LineReader",
    files: OutputFiles,
    arguments: _Arguments,
    tally: Counter[int],
    summary: Callable[[], str],
) -> int:
    """Answer every line in order and return the exit code. A bad line gets a result with "error", and the code is 2."""
    from lopa.cli.batch.decoded_lines import BatchProgress, decode_lines
    from lopa.cli.batch.resume import KeptResults, kept_results

    assert arguments.prompts is not None
    with ExitStack() as opened:
        source = opened.enter_context(open_prompts(arguments.prompts))
        shard = arguments.shard or Shard()
        total = shard.size(count_of_prompts(source, arguments.prompts))
        lines = shard.lines(lines_of_prompts(source, arguments.prompts, reader.decoded_with))
        kept = KeptResults()
        if arguments.resume and files.output is not None:
            kept = kept_results(files.output, lines)
        output, step_log = files.open_output(opened), files.open_step_log(opened)
        output.begin(kept.end)
        callbacks = _step_callbacks(_step_log(step_log, reader.decoder, reader.resolved), tally)
        shown = arguments.output is not None or not sys.stdout.isatty()
        progress = opened.enter_context(BatchProgress(total, kept, shown=shown))
        try:
            decode_lines(
                lines,
                reader,
                output.write,
                callbacks=callbacks,
                max_num_seqs=arguments.max_num_seqs or 1,
                progress=progress,
                source=str(arguments.prompts),
            )
        except BaseException:
            if files.output is not None and files.output.regular and not quiet():
                progress.line(f"{arguments.output} holds every result so far: --resume continues after them")
            raise
        finally:
            if not quiet():
                progress.line(f"{progress.summary()}, {summary()}")
        return 2 if progress.errors else 0


def _summary_of_run(resolved: ResolvedOptions, tally: Counter[int], seed: int | None, *, reason: bool) -> str:
    """Return seed, preset and number of branches, with the `reason` for it. The seed is left out unless it matters."""
    choice = resolved.branches
    counted = "1 branch" if choice.number == 1 else f"{choice.number} branches"
    if choice.number == "auto":
        counted = branches_text(tally)
    drawn = "" if seed is None or resolved.params.temperature == 0 else f"seed {seed}, "
    preset = "" if resolved.preset is None else f"preset {resolved.preset}, "
    return f"{drawn}{preset}{counted}" + (f": {choice.reason}" if reason else "")


def branches_text(steps: Counter[int]) -> str:
    """Return the range and the mean of the branches as text, such as "1 to 4 branches per step, 2.3 on average".

    `steps` has the number of steps by number of branches, over all requests of a run.
    """
    if not steps:
        return "no step"
    fewest, largest = min(steps), max(steps)
    if fewest == largest:
        return f"{largest} branch{'' if largest == 1 else 'es'} in every step"
    mean = sum(number * count for number, count in steps.items()) / steps.total()
    return f"{fewest} to {largest} branches per step, {mean:.1f} on average"
