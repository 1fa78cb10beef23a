"""lopa-export bench scaling: measures steps and tokens per second on several devices."""

from contextlib import ExitStack
from pathlib import Path

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import show_progress
from lopa.bench.report import prompt_file, run_now
from lopa.bench.scaling import ROUNDS, decoders_on_cores, measure_turns, scaling_report, table_from_scaling
from lopa.cli.measure.report_output import ReportOutput, command_line, report_option
from lopa.cli.options.devices import counts_from_text, device_timeout_option
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.tiny import EVAL


@click.command(
    name="scaling",
    cls=GroupedCommand,
    examples=("lopa-export bench scaling BUNDLE --devices 1,2 --branches 2 --limit 1",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "--devices", "counts", required=True, metavar="1,2,..", help="Numbers of devices to measure, each with one core."
)
@option("--branches", type=int, default=8, help="Number of branches per step.")
@option("--limit", type=click.IntRange(min=1), default=4, help="Maximum number of prompts of each kind.")
@report_option
@device_timeout_option
def command(
    bundle: Path,
    counts: str,
    branches: int,
    limit: int,
    output: Path | None,
    overwrite: bool,
    device_timeout: float,
) -> None:
    """Measure steps and tokens per second of BUNDLE on one-core devices.

    One device is always measured, as the base of the speed-up.
    """
    numbers = counts_from_text(counts)
    files = ReportOutput(output, replaces=overwrite)
    items = eval_set_from_jsonl(EVAL, limit=limit)
    with ExitStack() as opened:
        decoders = decoders_on_cores(opened, bundle, numbers, device_timeout=device_timeout)
        # Branches with deduplicated rows form one window, which cannot be distributed over devices.
        config = decoders[1].config(strategy="lopa", branches=branches, deduplicate_rows=False)
        files.check("scaling")
        device = decoders[max(decoders)].session.device
        run = run_now(decoders[1].bundle, device=device, threads=1, arguments=command_line())
        with show_progress("prompts on every number of devices", ROUNDS * len(items), quiet=quiet()) as progress:
            turns = measure_turns(decoders, items, config, progress)
        report = scaling_report(turns, run, prompt_file(EVAL, limit), decoders[1].resolve(config).options)
    files.write("scaling", report, [table_from_scaling(report)])
