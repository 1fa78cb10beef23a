"""lopa-export bench --quality: score and speed of every strategy."""

from pathlib import Path

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.evaluation.samples import Samples
from lopa.bench.figure import check_matplotlib
from lopa.bench.progress import progress_shown
from lopa.bench.quality.curves import curves_from_outcomes
from lopa.bench.quality.decodes import measured_outcomes, shared_settings, variants_that_fit
from lopa.bench.quality.measure import rows_from_outcomes
from lopa.bench.quality.plot import png_from_quality
from lopa.bench.quality.report import QualityReport
from lopa.bench.quality.table import tables_from_quality
from lopa.bench.quality.variants import AUTO_VARIANT, EVERY, VARIANTS, variants_from_text
from lopa.bench.report import prompt_file, run_now
from lopa.cli.measure.report_output import ReportOutput, command_line
from lopa.cli.program.verbosity import quiet
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError


def bench_quality(
    bundle: Path,
    prompts: Path,
    *,
    strategies: str | None,
    limit: int | None,
    output: ReportOutput,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Score and speed of `strategies` (None: the published ones) on the file `prompts`, so many of each kind."""
    asked = (*VARIANTS, AUTO_VARIANT) if strategies is None else variants_from_text(strategies)
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
        output.check("quality")
        # What is asked for by name and cannot be is an error; of all, what can be is measured.
        variants = variants_that_fit(decoder, asked) if strategies in (None, EVERY) else asked
        samples = Samples(items, variants)
        if output.folder is not None:
            samples.check(output.folder)
        run = run_now(decoder.bundle, device=decoder.session.device, threads=threads, arguments=command_line())
        with progress_shown("prompts", len(items), quiet=quiet()) as progress:
            outcomes = measured_outcomes(decoder, items, variants, progress, samples.keep)
        rows, curves = rows_from_outcomes(items, outcomes), curves_from_outcomes(items, outcomes)
        settings = shared_settings(decoder, variants)
        report = QualityReport("quality", run, prompt_file(prompts, limit), settings, rows, curves)
    if output.folder is not None:
        samples.write(output.folder)
    output.put("quality", report, tables_from_quality(report), png_from_quality)
