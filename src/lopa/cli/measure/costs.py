"""lopa-export bench costs: measures the cost table of a device, for --branches auto."""

import os
from pathlib import Path

import click

from lopa.bench.forward.cost_measurement import (
    MIN_ROUNDS,
    CostMeasurement,
    report_from_costs,
    schedule_for_decoder,
    table_from_costs,
)
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output, run_now
from lopa.cli.measure.report_output import ReportOutput, command_line, report_option
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle.costs import DeviceCosts, costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.hub.hub_bundle import check_own_bundle


@click.command(
    name="costs",
    cls=GroupedCommand,
    examples=("lopa-export bench costs BUNDLE --device cpu --threads 1 -o REPORT",),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@report_option
@device_options
def command(
    bundle: Path, output: Path | None, devices: tuple[str, ...], device_timeout: float, threads: int | None
) -> None:
    """Measure seconds of a forward of BUNDLE by branches, query tokens and cached tokens.

    The table is stored in BUNDLE for --branches auto. This takes a minute for a small model and about ten for a large
    one. A measurement that is interrupted after its first rounds keeps its results.
    """
    files = ReportOutput(output)
    check_own_bundle(bundle)
    with Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout) as decoder:
        opened = decoder.bundle
        target = opened.path / costs_name(decoder.session.device)
        if not os.access(opened.path, os.W_OK):
            raise BadInputError(
                f"{opened.path} cannot be written",
                expected=f"a writable bundle, to store {target.name}",
                remedy="copy the bundle to a folder of your own",
            )
        check_output(target)
        files.check("costs")
        run = run_now(opened, device=decoder.session.device, threads=threads, arguments=command_line())
        measurement = CostMeasurement(decoder, schedule_for_decoder(decoder), threads=threads)
        costs = _measured_costs(measurement, target)
    write_atomically(target, json_from_record(costs))
    report = report_from_costs(costs, run)
    files.write("costs", report, [table_from_costs(report)])


def _measured_costs(measurement: CostMeasurement, target: Path) -> DeviceCosts:
    """Return the table. If the measurement is interrupted, write its results to `target`, if they make a table."""
    try:
        with show_progress("forwards", measurement.schedule.forwards, quiet=quiet()) as progress:
            measurement.run(progress)
    except (KeyboardInterrupt, SystemExit):
        kept = measurement.costs
        if kept is None:
            needed = MIN_ROUNDS * len(measurement.schedule.shapes)
            click.echo(f"No results were saved: a table needs {needed} forwards, {MIN_ROUNDS} of every size.", err=True)
        else:
            write_atomically(target, json_from_record(kept))
            click.echo(f"Results of {measurement.forwards} forwards were saved in {target}.", err=True)
        raise
    costs = measurement.costs
    assert costs is not None, "a measurement that ran to its end has a table"
    return costs
