"""lopa-export bench --costs: the cost table of a device, for --branches auto."""

import os
from pathlib import Path

import click

from lopa.bench.forward.costs import MIN_ROUNDS, CostMeasurement, schedule_for_decoder
from lopa.bench.forward.costs_report import report_from_costs, tables_from_costs
from lopa.bench.forward.machine_rates import MachineRates, measured_rates
from lopa.bench.progress import progress_shown
from lopa.bench.report import check_output, run_now
from lopa.cli.measure.report_output import ReportOutput, command_line
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle.costs import Costs, costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_whole

_WITH_FLOOR = ("cpu", "openvino:CPU")
"""Devices that compute as the machine's rates are measured: on the processor, and floats in float32."""


def bench_costs(
    bundle: Path, *, output: ReportOutput, devices: tuple[str, ...], device_timeout: float, threads: int | None
) -> None:
    """Seconds of a forward by its sizes, stored in the bundle at `bundle`, beside what the machine could do."""
    with Decoder.open(bundle, devices, threads=threads, device_timeout=device_timeout) as decoder:
        opened = decoder.bundle
        target = opened.path / costs_name(decoder.session.device)
        if not os.access(opened.path, os.W_OK):
            raise BadInputError(
                f"{opened.path} cannot be written",
                expected=f"a bundle that can hold {target.name}",
                remedy="copy the bundle to a place of your own",
            )
        check_output(target)
        output.check("costs")
        run = run_now(opened, device=decoder.session.device, threads=threads, arguments=command_line())
        measurement = CostMeasurement(decoder, schedule_for_decoder(decoder), threads=threads)
        costs = _measured_costs(measurement, target)
    write_whole(target, json_from_record(costs))
    rates = _rates(run.machine.cores if threads is None else threads) if decoder.session.device in _WITH_FLOOR else None
    report = report_from_costs(costs, run, rates, opened.manifest)
    output.put("costs", report, tables_from_costs(report))


def _measured_costs(measurement: CostMeasurement, target: Path) -> Costs:
    """The table; when the measurement is stopped, what it has so far is written to `target`, if it is a table."""
    try:
        with progress_shown("forwards", measurement.schedule.forwards, quiet=quiet()) as progress:
            measurement.run(progress)
    except (KeyboardInterrupt, SystemExit):
        kept = measurement.costs
        if kept is None:
            needed = MIN_ROUNDS * len(measurement.schedule.shapes)
            click.echo(f"Nothing was kept: a table needs {needed} forwards, {MIN_ROUNDS} of every size.", err=True)
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
