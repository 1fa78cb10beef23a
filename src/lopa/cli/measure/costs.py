"""lopa-export bench costs: measures the cost table of a device, for --branches auto."""

import os
from pathlib import Path

import click

from lopa.bench.forward.cost_measurement import measured_costs, schedule_for_decoder, table_from_costs
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output
from lopa.bench.table import show_table
from lopa.cli.measure.compared_strategies import check_masks
from lopa.cli.options.devices import device_options
from lopa.cli.program.grouped_command import GroupedCommand
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle.costs import costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.hub.hub_bundle import check_own_bundle


@click.command(name="costs", cls=GroupedCommand, examples=("lopa-export bench costs BUNDLE --device cpu --threads 1",))
@click.argument("bundle", type=click.Path(path_type=Path))
@device_options
def command(bundle: Path, devices: tuple[str, ...], device_timeout: float, threads: int | None) -> None:
    """Measure seconds of a forward of BUNDLE by branches, query tokens and cached tokens.

    The table is stored in BUNDLE for --branches auto. This takes a minute for a small model and about ten for a large
    one.
    """
    check_own_bundle(bundle)
    check_masks(bundle, "a cost table")
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
        schedule = schedule_for_decoder(decoder)
        with show_progress("forwards", schedule.forwards, quiet=quiet()) as progress:
            costs = measured_costs(decoder, schedule, threads=threads, progress=progress)
    write_atomically(target, json_from_record(costs))
    show_table(table_from_costs(costs))
