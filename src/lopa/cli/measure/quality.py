"""lopa-export bench --quality: score and speed of every strategy."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.evaluation.samples import sample_file, write_samples
from lopa.bench.figure import check_matplotlib
from lopa.bench.progress import progress_shown
from lopa.bench.quality.curves import curves_from_outcomes
from lopa.bench.quality.decodes import measured_outcomes, shared_settings, variant_config, variants_that_fit
from lopa.bench.quality.kept_outcomes import KeptOutcomes
from lopa.bench.quality.measure import rows_from_outcomes
from lopa.bench.quality.plot import png_from_quality
from lopa.bench.quality.report import QualityReport
from lopa.bench.quality.table import tables_from_quality
from lopa.bench.quality.variants import EVERY, PUBLISHED, variants_from_text
from lopa.bench.report import check_output, prompt_file, run_now
from lopa.cli.measure.report_output import ReportOutput, command_line
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError

_NAME = "quality"


def bench_quality(
    bundle: Path,
    prompts: Path,
    *,
    strategies: str | None,
    limit: int | None,
    resume: bool,
    output: ReportOutput,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Measure score and speed of `strategies` (None: the published ones) on the file `prompts`, so many of each kind.

    With `resume` outcomes that are in the output's folder are taken from there.
    """
    asked = variants_from_text(PUBLISHED if strategies is None else strategies)
    items = eval_set_from_jsonl(prompts, limit=limit, chats=True)
    if output.plot is not None:
        check_matplotlib()
        if not any(item.verdict for item in items):
            raise BadInputError(
                f"--plot, but {prompts} has no prompt that is scored here",
                expected="prompts with a score to draw: of kind math, or with a scoring",
                remedy="leave --plot out, or give other prompts",
            )
    with Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout) as decoder:
        output.check(_NAME)
        # What is asked for by name and cannot be is an error; of all, what can be is measured.
        variants = variants_that_fit(decoder, asked) if strategies in (None, PUBLISHED, EVERY) else asked
        run = run_now(decoder.bundle, device=decoder.session.device, threads=threads, arguments=command_line())
        file = prompt_file(prompts, limit)
        kept = None if output.folder is None else KeptOutcomes(output.folder, _NAME, run, file)
        with ExitStack() as opened:
            if kept is not None and output.folder is not None:
                for variant in variants if any(item.task_id for item in items) else ():
                    check_output(sample_file(output.folder, variant.name))
                if resume:
                    kept.read()
                    if not quiet():
                        click.echo(f"{len(kept)} outcomes are in {output.folder} already", err=True)
                opened.enter_context(kept.writing())
            progress = opened.enter_context(progress_shown("prompts", len(items), quiet=quiet()))
            try:
                outcomes = measured_outcomes(decoder, items, variants, progress, kept=kept)
            except BaseException:
                if kept is not None and len(kept) and not quiet():
                    click.echo(f"{output.folder} has {len(kept)} outcomes: --resume goes on from there", err=True)
                raise
        rows, curves = rows_from_outcomes(items, outcomes), curves_from_outcomes(items, outcomes)
        settings = shared_settings(decoder, variants)
        report = QualityReport(_NAME, run, file, settings, rows, curves)
        own = {variant.name: variant_config(decoder, variant, published=False) for variant in variants}
    if kept is not None and output.folder is not None:
        if any(item.task_id for item in items):
            write_samples(output.folder, items, {name: kept.texts(items, name, config) for name, config in own.items()})
        report = replace(report, outcomes=kept.outcomes)
    output.put(_NAME, report, tables_from_quality(report), png_from_quality)
    if kept is not None:
        kept.finish()
