"""lopa-export bench cold: measures seconds from the import of the runtime to the first forward."""

from pathlib import Path

import click

from lopa.bench.forward.cold_start import STARTS, measure_cold_start, report_from_starts, table_from_cold
from lopa.bench.progress import show_progress
from lopa.bench.report import run_now
from lopa.cli.measure.report_output import ReportOutput, command_line, report_option
from lopa.cli.options.devices import device_option, threads_option
from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle import Bundle


@click.command(name="cold", cls=GroupedCommand, examples=("lopa-export bench cold BUNDLE --threads 1",))
@click.argument("bundle", type=click.Path(path_type=Path))
@report_option
@device_option
@threads_option
def command(bundle: Path, output: Path | None, overwrite: bool, devices: tuple[str, ...], threads: int | None) -> None:
    """Measure seconds from the import of the runtime to the first forward of BUNDLE, in new processes."""
    opened = Bundle.open(bundle)
    files = ReportOutput(output, replaces=overwrite)
    files.check("cold")
    run = run_now(opened, device=",".join(devices), threads=threads, arguments=command_line())
    starts = []
    with show_progress("cold starts", STARTS, quiet=quiet()) as progress:
        for done in range(1, STARTS + 1):
            starts.append(measure_cold_start(opened.path, devices, threads))
            progress(done)
    report = report_from_starts(run, tuple(starts))
    files.write("cold", report, [table_from_cold(report)])
