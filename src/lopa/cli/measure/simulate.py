"""lopa-export bench simulate: simulates replicas of a server under load, from recorded decodes and costs."""

from pathlib import Path

import click

from lopa.bench.figure import check_matplotlib
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output, json_from_report
from lopa.bench.table import show_table
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.runtime.extra import extra_needed
from lopa.runtime.files.output_file import write_atomically


@click.command(name="simulate", cls=GroupedCommand, examples=("lopa-export bench simulate SCENARIO.json",))
@click.argument("scenario", type=click.Path(path_type=Path))
@option("--json", "as_json", is_flag=True, help="Print the whole report as JSON instead of tables.")
@option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="PNG",
    help="File for a plot of tokens and times against the load.",
)
def command(scenario: Path, as_json: bool, plot: Path | None) -> None:
    """Simulate replicas of a server, as the file SCENARIO describes them (docs/how-to/measure.md).

    For every load the report lists the share of answers in time, latencies, rejected and lost requests, and the cost of
    a million tokens. It also names the best number of branches. The same file gives the same result.
    """
    with extra_needed("simulate", {"simpy"}, "the library for simulations"):
        from lopa.bench.fleet.fleet_plot import png_from_fleet
        from lopa.bench.fleet.fleet_table import tables_of_fleet
        from lopa.bench.fleet.point import fleet_report
        from lopa.bench.fleet.scenario import material_from_file
    material = material_from_file(scenario)
    if plot is not None:
        check_matplotlib()
        check_output(plot)
    count = len(material.scenario.loads) * len(material.scenario.branches)
    with show_progress("loads", count, quiet=quiet()) as progress:
        report = fleet_report(material, progress)
    if plot is not None:
        write_atomically(plot, png_from_fleet(report))
    if as_json:
        click.echo(json_from_report(report).decode(), nl=False)
        return
    for table in tables_of_fleet(report):
        show_table(table)
