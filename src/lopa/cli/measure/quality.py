"""lopa-export bench quality: measures score and speed of decoding strategies."""

from contextlib import ExitStack
from pathlib import Path

import click

from lopa.bench.comparison.outcomes import KeptOutcomes
from lopa.bench.comparison.quality_figures import rows_from_outcomes
from lopa.bench.comparison.quality_run import decode_outcomes, shared_settings, variant_config, variants_that_fit
from lopa.bench.comparison.quality_table import QualityReport, tables_from_quality
from lopa.bench.comparison.score_plot import check_matplotlib, panels_of_quality, png_from_panels
from lopa.bench.comparison.variants import EVERY, PUBLISHED, SWEEPS, variants_from_text
from lopa.bench.data_sets import sample_file, write_samples
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output, prompt_file, run_now
from lopa.cli.measure.report_output import ReportOutput, command_line, note, report_option
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError

_NAME = "quality"


@click.command(
    name="quality",
    cls=GroupedCommand,
    examples=(
        "lopa-export bench quality BUNDLE EVAL.jsonl --limit 1 --strategies eb -o REPORT",
        "lopa-export bench quality BUNDLE EVAL.jsonl --limit 1 --strategies eb,klass -o REPORT --resume",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompts", type=click.Path(path_type=Path), metavar="EVAL")
@option(
    "--strategies",
    metavar="NAMES",
    default=PUBLISHED,
    help=f"Strategies, separated by commas ({', '.join(SWEEPS)}), each measured with several values of one of its "
    "options; or a set: recommended (8 configurations), published (8 or 9), all (more than 100).",
)
@option("--limit", type=click.IntRange(min=1), show_default="all", help="Maximum number of prompts of each kind.")
@option("--resume", is_flag=True, help="Keep the outcomes in --output and decode only the missing ones.")
@report_option
@option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="PNG",
    help="File for a plot of score against tokens per forward and per second.",
)
@device_options
def command(
    bundle: Path,
    prompts: Path,
    strategies: str,
    limit: int | None,
    resume: bool,
    output: Path | None,
    plot: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Measure score and speed of decoding strategies with BUNDLE on the prompts in EVAL.

    EVAL is a file of JSON lines with "prompt", "answer" and "kind" (docs/how-to/measure.md). The subcommand questions
    writes such files.
    """
    if resume and output is None:
        raise click.UsageError("--resume needs --output, the folder of the outcomes")
    files = ReportOutput(output, plot)
    requested = variants_from_text(strategies)
    items = eval_set_from_jsonl(prompts, limit=limit, chats=True)
    if plot is not None:
        check_matplotlib()
        if not any(item.verdict for item in items):
            raise BadInputError(
                f"--plot, but {prompts} has no prompt with a scoring",
                expected="prompts of kind math, or with the field scoring",
                remedy="omit --plot, or give other prompts",
            )
    with ExitStack() as opened:
        decoder = opened.enter_context(Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout))
        files.check(_NAME)
        # A configuration that the bundle does not support is an error if it is named, and skipped in a set.
        variants = variants_that_fit(decoder, requested) if strategies in (PUBLISHED, EVERY) else requested
        configs = {variant.name: variant_config(decoder, variant) for variant in variants}
        run = run_now(decoder.bundle, device=decoder.session.device, threads=threads, arguments=command_line())
        file = prompt_file(prompts, limit)
        kept = None if output is None else KeptOutcomes(output, _NAME, run, file)
        has_samples = output is not None and any(item.task_id for item in items)
        if kept is not None and output is not None:
            for name in configs if has_samples else ():
                check_output(sample_file(output, name))
            opened.enter_context(kept.writing(resume=resume, note=note))
        progress = opened.enter_context(show_progress("decodes", len(items) * len(configs), quiet=quiet()))
        outcomes = decode_outcomes(decoder, items, variants, progress, kept=kept)
        rows = rows_from_outcomes(items, outcomes)
        settings = shared_settings(decoder, variants)
    if kept is not None and output is not None and has_samples:
        write_samples(output, items, {name: kept.texts(items, name, config) for name, config in configs.items()})
    report = QualityReport(_NAME, run, file, settings, rows)
    files.write(_NAME, report, tables_from_quality(report), lambda report: png_from_panels(panels_of_quality(report)))
