"""lopa-export bench: quality against speed, our decoder beside an eager loop, scaling, a cost table, a cold start."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import click

from lopa.bench.eval_set import SCORED_KIND, eval_set_from_jsonl
from lopa.bench.forward.cold_start import STARTS, ColdStart, measured_cold_start, report_from_starts, table_from_cold
from lopa.bench.forward.costs import LEAST_ROUNDS, CostMeasurement, plan_for_decoder
from lopa.bench.forward.costs_report import report_from_costs, tables_from_costs
from lopa.bench.forward.machine_rates import MachineRates, measured_rates
from lopa.bench.progress import Progress, progress_shown
from lopa.bench.quality.measure import QualityReport, quality_rows, shared_settings
from lopa.bench.quality.plot import check_matplotlib, png_from_quality
from lopa.bench.quality.table import tables_from_quality
from lopa.bench.report import make_folder, prompt_file, run_now, write_report
from lopa.bench.scaling.plot import png_from_scaling
from lopa.bench.scaling.run import decoders_on_cores, scaling_report
from lopa.bench.scaling.table import tables_from_scaling
from lopa.bench.speed.report import FORWARD_INCLUDES, ROUNDS, SpeedReport
from lopa.bench.speed.table import tables_from_speed
from lopa.bench.table import show_table
from lopa.cli.options.devices import counts_from_text, device_options
from lopa.cli.program.verbosity import quiet
from lopa.export.extra import export_extra_needed
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import Costs, costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_whole
from lopa.tiny import EVAL

_SPEED_PROMPTS = 8
_SPEED_BRANCHES = 5
_SCALING_PROMPTS = 4
_SCALING_BRANCHES = 8
_GOES_WITH = {
    "--plot": ("--quality", "--devices"),
    "--checkpoint": ("--speed",),
    "--lora": ("--speed",),
    "--branches": ("--speed", "--devices"),
    "--limit": ("--quality", "--speed", "--devices"),
}
"""Options that some benchmarks alone know."""


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
    "--costs",
    is_flag=True,
    help="Seconds of a forward by branches, window and prefix beside what the machine could do; stored in the bundle "
    "for --branches auto. Takes a minute for a small model, some ten for a large one; when it is stopped after its "
    "first rounds, what was measured is kept.",
)
@click.option("--cold", is_flag=True, help="Seconds from the import of the runtime to the first forward.")
@click.option(
    "--devices",
    "counts",
    metavar="1,2,..",
    help="Steps and tokens per second on so many devices of one core each, beside the model of docs/scaling.md, and "
    "what it projects for more devices and other links.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="PNG",
    help="With --quality: draw score against speed. With --devices: draw speed against devices.",
)
@click.option("--checkpoint", type=click.Path(path_type=Path), metavar="DIR", help="With --speed: the bundle's origin.")
@click.option("--lora", type=click.Path(path_type=Path), metavar="DIR", help="With --speed: its adapter.")
@click.option(
    "--branches",
    type=int,
    help=f"Branches per step [default: --speed {_SPEED_BRANCHES}, --devices {_SCALING_BRANCHES}].",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"At most so many prompts of each kind [default: --quality all, --speed {_SPEED_PROMPTS}, --devices "
    f"{_SCALING_PROMPTS}].",
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write the report there: JSON, Markdown."
)
@device_options
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads [default: the engine's choice; --speed and --devices 1]."
)
def command(
    bundle: Path,
    quality: Path | None,
    speed: bool,
    costs: bool,
    cold: bool,
    counts: str | None,
    plot: Path | None,
    checkpoint: Path | None,
    lora: Path | None,
    branches: int | None,
    limit: int | None,
    output: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Measure BUNDLE by one of --quality, --speed, --costs, --cold and --devices. The tables go to standard output."""
    asked = {
        "--quality": quality is not None,
        "--speed": speed,
        "--costs": costs,
        "--cold": cold,
        "--devices": counts is not None,
    }
    given = {
        "--plot": plot is not None,
        "--checkpoint": checkpoint is not None,
        "--lora": lora is not None,
        "--branches": branches is not None,
        "--limit": limit is not None,
    }
    _check_usage([name for name in asked if asked[name]], [name for name in given if given[name]])
    if quality is not None:
        _bench_quality(
            bundle,
            quality,
            plot=plot,
            limit=limit,
            output=output,
            devices=devices,
            device_timeout=device_timeout,
            threads=threads,
        )
        return
    if costs:
        _bench_costs(bundle, output=output, devices=devices, device_timeout=device_timeout, threads=threads)
        return
    if cold:
        _bench_cold(bundle, output=output, devices=devices, threads=threads)
        return
    if counts is not None:
        if devices != ("cpu",) or threads not in (None, 1):
            raise click.UsageError("--devices names devices of one core each itself: leave --device and --threads out")
        _bench_scaling(
            bundle,
            counts_from_text(counts),
            plot=plot,
            branches=_SCALING_BRANCHES if branches is None else branches,
            limit=_SCALING_PROMPTS if limit is None else limit,
            output=output,
            device_timeout=device_timeout,
        )
        return
    if checkpoint is None:
        raise click.UsageError("--speed needs --checkpoint, from which the eager loop reads its weights")
    if devices != ("cpu",):
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


def _check_usage(asked: list[str], given: list[str]) -> None:
    """`asked` are the benchmarks on the command line, `given` the options that not all of them know."""
    if len(asked) != 1:
        raise click.UsageError("give one of --quality EVAL, --speed, --costs, --cold and --devices 1,2,..")
    for name in given:
        if asked[0] not in _GOES_WITH[name]:
            raise click.UsageError(f"{name} goes with {' and '.join(_GOES_WITH[name])}")


def _bench_quality(
    path: Path,
    prompts: Path,
    *,
    plot: Path | None,
    limit: int | None,
    output: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
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
    with Decoder.open(path, devices, threads=threads, device_timeout=device_timeout) as decoder:
        _make_folders(output, None if plot is None else plot.parent)
        run = run_now(decoder.bundle, device=",".join(devices), threads=threads, arguments=_arguments())
        with progress_shown("prompts", len(items), quiet=quiet()) as progress:
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
        from lopa.bench.speed.measure import eager_decoder, measured_speed
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with Decoder.open(path, ["cpu"], threads=threads) as ours:
        config = ours.config(published=True, branches=branches)
        eager = eager_decoder(ours, checkpoint, lora)
        _make_folders(output)
        run = run_now(ours.bundle, device="cpu", threads=threads, arguments=_arguments())
        with progress_shown("prompts on both sides", ROUNDS * len(items), quiet=quiet()) as progress:
            measured = measured_speed(ours, eager, items, config, threads=threads, progress=progress)
    report = SpeedReport("speed", run, prompt_file(EVAL, limit), asdict(config), FORWARD_INCLUDES, measured)
    tables = tables_from_speed(report)
    for table in tables:
        show_table(table)
    if output is not None:
        write_report(output, "speed", report, tables)


def _bench_costs(
    path: Path, *, output: Path | None, devices: tuple[str, ...], device_timeout: float, threads: int | None
) -> None:
    with Decoder.open(path, devices, threads=threads, device_timeout=device_timeout) as decoder:
        bundle = decoder.bundle
        target = bundle.path / costs_name(decoder.session.device)
        if not os.access(bundle.path, os.W_OK):
            raise BadInputError(
                f"{bundle.path} cannot be written",
                expected=f"a bundle that can hold {target.name}",
                remedy="copy the bundle to a place of your own",
            )
        _make_folders(output)
        run = run_now(bundle, device=",".join(devices), threads=threads, arguments=_arguments())
        plan = plan_for_decoder(decoder)
        costs = _measured_costs(CostMeasurement(decoder, plan, threads=threads), target)
    write_whole(target, json_from_record(costs))
    rates = _rates(run.machine.cores if threads is None else threads) if devices == ("cpu",) else None
    report = report_from_costs(costs, run, rates, bundle.manifest)
    tables = tables_from_costs(report)
    for table in tables:
        show_table(table)
    if output is not None:
        write_report(output, "costs", report, tables)


def _measured_costs(measurement: CostMeasurement, target: Path) -> Costs:
    """The table; when the measurement is stopped, what it has so far is written to `target`, if it is a table."""
    try:
        with progress_shown("forwards", measurement.plan.forwards, quiet=quiet()) as progress:
            measurement.run(progress)
    except (KeyboardInterrupt, SystemExit):
        kept = measurement.costs
        if kept is None:
            needed = LEAST_ROUNDS * len(measurement.plan.shapes)
            click.echo(f"Nothing was kept: a table needs {needed} forwards, {LEAST_ROUNDS} of every size.", err=True)
        else:
            write_whole(target, json_from_record(kept))
            click.echo(f"What was measured is kept: {target}, from {measurement.forwards} forwards.", err=True)
        raise
    costs = measurement.costs
    assert costs is not None, "a measurement that ran to its end has a table"
    return costs


def _rates(threads: int) -> MachineRates:
    if not quiet():
        click.echo("measuring what the machine could do, for the column floor", err=True)
    return measured_rates(threads)


def _bench_cold(path: Path, *, output: Path | None, devices: tuple[str, ...], threads: int | None) -> None:
    bundle = Bundle.open(path)
    _make_folders(output)
    run = run_now(bundle, device=",".join(devices), threads=threads, arguments=_arguments())
    with progress_shown("cold starts", STARTS, quiet=quiet()) as progress:
        starts = tuple(_cold_starts(bundle.path, devices, threads, progress))
    report = report_from_starts(run, starts)
    table = table_from_cold(report)
    show_table(table)
    if output is not None:
        write_report(output, "cold", report, [table])


def _cold_starts(path: Path, devices: tuple[str, ...], threads: int | None, progress: Progress) -> Iterator[ColdStart]:
    for done in range(1, STARTS + 1):
        yield measured_cold_start(path, devices, threads)
        progress(done)


def _bench_scaling(
    path: Path,
    counts: tuple[int, ...],
    *,
    plot: Path | None,
    branches: int,
    limit: int,
    output: Path | None,
    device_timeout: float,
) -> None:
    if plot is not None:
        check_matplotlib()
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with ExitStack() as opened:
        decoders = decoders_on_cores(opened, path, counts, device_timeout=device_timeout)
        config = decoders[1].config(branches=branches)
        _make_folders(output, None if plot is None else plot.parent)
        report = scaling_report(
            decoders, config, items, prompt_file(EVAL, limit), counts=counts, arguments=_arguments(), quiet=quiet()
        )
    tables = tables_from_scaling(report)
    for table in tables:
        show_table(table)
    if output is not None:
        write_report(output, "scaling", report, tables)
    if plot is not None:
        write_whole(plot, png_from_scaling(report))


def _make_folders(*folders: Path | None) -> None:
    """Before the measurement, so that a place that cannot be written is known early, and after all input is read."""
    for folder in folders:
        if folder is not None:
            make_folder(folder)


def _arguments() -> list[str]:
    """The command line, without the folder of the program."""
    return ["lopa-export", *sys.argv[1:]]
