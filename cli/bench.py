"""lopa-export bench: quality against speed of every strategy, or our decoder beside a PyTorch eager loop."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from lopa.bench.eval_set import SCORED_KIND, eval_set_from_jsonl
from lopa.bench.plot import check_matplotlib, png_from_quality
from lopa.bench.progress import progress_shown
from lopa.bench.quality import QualityReport, quality_rows, shared_settings
from lopa.bench.quality_table import tables_from_quality
from lopa.bench.report import make_folder, prompt_file, run_now, write_report, write_whole
from lopa.bench.speed_report import FORWARD_INCLUDES, ROUNDS, SpeedReport
from lopa.bench.speed_table import tables_from_speed
from lopa.bench.table import show_table
from lopa.export.extra import export_extra_needed
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.tiny import EVAL

_SPEED_PROMPTS = 8
_SPEED_BRANCHES = 5


@click.command(name="bench")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--quality",
    type=click.Path(path_type=Path),
    metavar="EVAL",
    help='Score and speed of every strategy on the prompts of a JSON-lines file: {"prompt", "answer", "kind"}.',
)
@click.option("--speed", is_flag=True, help="Seconds per step beside a PyTorch eager loop on the same weights (CPU).")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="PNG", help="With --quality: draw score against speed."
)
@click.option("--checkpoint", type=click.Path(path_type=Path), metavar="DIR", help="With --speed: the bundle's origin.")
@click.option("--lora", type=click.Path(path_type=Path), metavar="DIR", help="With --speed: its adapter.")
@click.option("--branches", type=int, help=f"With --speed: branches per step [default: {_SPEED_BRANCHES}].")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"At most so many prompts of each kind [default: all; with --speed {_SPEED_PROMPTS}].",
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write the report there: JSON, Markdown."
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda:N or numpy.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads [default: the engine's choice; with --speed 1].")
def command(
    bundle: Path,
    quality: Path | None,
    speed: bool,
    plot: Path | None,
    checkpoint: Path | None,
    lora: Path | None,
    branches: int | None,
    limit: int | None,
    output: Path | None,
    device: str,
    threads: int | None,
) -> None:
    """Measure BUNDLE: either --quality or --speed. The tables go to standard output."""
    if (quality is not None) == speed:
        raise click.UsageError("give either --quality EVAL or --speed")
    if quality is not None:
        if checkpoint is not None or lora is not None or branches is not None:
            raise click.UsageError("--checkpoint, --lora and --branches go with --speed")
        _bench_quality(bundle, quality, plot=plot, limit=limit, output=output, device=device, threads=threads)
        return
    if plot is not None:
        raise click.UsageError("--plot goes with --quality")
    if checkpoint is None:
        raise click.UsageError("--speed needs --checkpoint, from which the eager loop reads its weights")
    if device != "cpu":
        raise click.UsageError("--speed compares on the CPU only: leave --device out")
    _bench_speed(
        bundle,
        checkpoint,
        lora,
        branches=_SPEED_BRANCHES if branches is None else branches,
        limit=_SPEED_PROMPTS if limit is None else limit,
        output=output,
        threads=1 if threads is None else threads,
    )


def _bench_quality(
    path: Path,
    prompts: Path,
    *,
    plot: Path | None,
    limit: int | None,
    output: Path | None,
    device: str,
    threads: int | None,
) -> None:
    items = eval_set_from_jsonl(prompts, limit=limit)
    if plot is not None:
        check_matplotlib()
        if not any(item.kind == SCORED_KIND for item in items):
            raise BadInputError(
                f"--plot, but {prompts} has no prompt of kind {SCORED_KIND}",
                expected="prompts with a score to draw",
                remedy="leave --plot out, or give other prompts",
            )
    with Decoder.open(path, [device], threads=threads) as decoder:
        _make_folders(output, None if plot is None else plot.parent)
        run = run_now(decoder.bundle, device=device, threads=threads, arguments=_arguments())
        with progress_shown("prompts", len(items)) as progress:
            rows = quality_rows(decoder, items, progress)
        report = QualityReport("quality", run, prompt_file(prompts, limit), shared_settings(decoder), rows)
    tables = tables_from_quality(report)
    for table in tables:
        show_table(table)
    if output is not None:
        write_report(output, "quality", report, tables)
    if plot is not None:
        write_whole(plot, png_from_quality(report))


def _bench_speed(
    path: Path,
    checkpoint: Path,
    lora: Path | None,
    *,
    branches: int,
    limit: int,
    output: Path | None,
    threads: int,
) -> None:
    with export_extra_needed("the eager loop"):
        from lopa.bench.speed import eager_decoder, measured_speed
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with Decoder.open(path, ["cpu"], threads=threads) as ours:
        config = ours.config(published=True, branches=branches)
        eager = eager_decoder(ours, checkpoint, lora)
        _make_folders(output)
        run = run_now(ours.bundle, device="cpu", threads=threads, arguments=_arguments())
        with progress_shown("prompts on both sides", ROUNDS * len(items)) as progress:
            measured = measured_speed(ours, eager, items, config, threads=threads, progress=progress)
    report = SpeedReport("speed", run, prompt_file(EVAL, limit), asdict(config), FORWARD_INCLUDES, measured)
    tables = tables_from_speed(report)
    for table in tables:
        show_table(table)
    if output is not None:
        write_report(output, "speed", report, tables)


def _make_folders(*folders: Path | None) -> None:
    """Before the measurement, so that a place that cannot be written is known early, and after all input is read."""
    for folder in folders:
        if folder is not None:
            make_folder(folder)


def _arguments() -> list[str]:
    """The command line, without the folder of the program."""
    return ["lopa-export", *sys.argv[1:]]
