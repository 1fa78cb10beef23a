"""lopa-export bench quality: measures score and speed of decoding strategies."""

from contextlib import ExitStack
from pathlib import Path

import click

from lopa.bench.comparison.outcomes import KeptOutcomes
from lopa.bench.comparison.quality_figures import rows_from_outcomes
from lopa.bench.comparison.quality_run import (
    decode_outcomes,
    shared_settings,
    variant_config,
    with_earlier_variants,
)
from lopa.bench.comparison.quality_table import QualityReport, tables_from_quality
from lopa.bench.comparison.score_plot import check_matplotlib, panels_of_quality
from lopa.bench.comparison.variants import PUBLISHED
from lopa.bench.data_sets import sample_file, write_samples
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output, files_of_report, prompt_file, run_now
from lopa.cli.measure.compared_strategies import requested_variants, strategies_options, supported_variants
from lopa.cli.measure.report_output import ReportOutput, command_line, note, plot_option, report_option, resume_option
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
        "lopa-export bench quality BUNDLE EVAL.jsonl --limit 1 --strategies d2f --sweep skip_threshold=0.7,0.8",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompts", type=click.Path(path_type=Path), metavar="EVAL")
@strategies_options(default=PUBLISHED)
@option("--limit", type=click.IntRange(min=1), show_default="all", help="Maximum number of prompts of each kind.")
@resume_option("Keep the outcomes in --output and decode only the missing ones.")
@report_option
@plot_option("File for a plot of score against tokens per forward and per second: .png, .svg or .pdf.")
@device_options
def command(
    bundle: Path,
    prompts: Path,
    strategies: str,
    sweep: tuple[str, ...],
    limit: int | None,
    resume: bool,
    output: Path | None,
    overwrite: bool,
    plot: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Measure score and speed of decoding strategies with BUNDLE on the prompts in EVAL.

    EVAL is a file of JSON lines with "prompt", "answer" and "kind" (docs/how-to/measure.md). The subcommand questions
    writes such files.
    """
    files = ReportOutput(output, plot, replaces=overwrite, resumes=resume)
    requested = requested_variants(strategies, sweep)
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
        variants = supported_variants(decoder, strategies, requested)
        configs = {variant.name: variant_config(decoder, variant) for variant in variants}
        run = run_now(decoder.bundle, device=decoder.session.device, threads=threads, arguments=command_line())
        file = prompt_file(prompts, limit)
        kept = None if output is None else KeptOutcomes(output, _NAME, run, file)
        has_samples = output is not None and any(item.task_id for item in items)
        if kept is not None and output is not None:
            for name in configs if has_samples else ():
                check_output(sample_file(output, name))
            opened.enter_context(kept.writing(resume=resume, note=note))
            if resume:
                earlier = files_of_report(output, _NAME)[0]
                variants, left_out = with_earlier_variants(decoder, items, variants, kept, earlier)
                if left_out:
                    reason = "which did not decode all of these prompts; name their strategies too to decode the rest"
                    note(f"the report leaves out {', '.join(left_out)}, {reason}")
                configs = {variant.name: variant_config(decoder, variant) for variant in variants}
        progress = opened.enter_context(show_progress("decodes", len(items) * len(configs), quiet=quiet()))
        outcomes = decode_outcomes(decoder, items, variants, progress, kept=kept)
        rows = rows_from_outcomes(items, outcomes)
        settings = shared_settings(decoder, variants)
    if kept is not None and output is not None and has_samples:
        write_samples(output, items, {name: kept.texts(items, name, config) for name, config in configs.items()})
        note(f"wrote {sample_file(output, '*')}")
    report = QualityReport(_NAME, run, file, settings, rows)
    files.write(_NAME, report, tables_from_quality(report), lambda: panels_of_quality(report))
