"""lopa-export simulate: a fleet of replicas under load, from recorded decodes and costs (docs/how-to/measure.md)."""

from pathlib import Path

import click

from lopa.bench.figure import check_matplotlib
from lopa.bench.progress import progress_shown
from lopa.bench.report import check_output, json_from_report
from lopa.bench.table import show_table
from lopa.cli.program.verbosity import quiet
from lopa.runtime.extra import extra_needed
from lopa.runtime.files.output_file import write_whole


@click.command(name="simulate")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON instead of tables.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="PNG", help="Draw tokens and times against the load.")
def command(scenario: Path, as_json: bool, plot: Path | None) -> None:
    """Simulate a fleet of replicas that answer over HTTP, as the file SCENARIO describes it (docs/how-to/measure.md).

    It says how many answers come in time at every load, how long they take, what is refused or lost, what a million
    tokens cost, and how many branches serve each load best. The same file gives the same result.
    """
    with extra_needed("simulate", {"simpy"}, "the library that simulates"):
        from lopa.bench.fleet.plot import png_from_fleet
        from lopa.bench.fleet.point import fleet_report
        from lopa.bench.fleet.scenario import material_from_file
        from lopa.bench.fleet.table import tables_of_fleet
    material = material_from_file(scenario)
    if plot is not None:
        check_matplotlib()
        check_output(plot)
    count = len(material.scenario.loads) * len(material.scenario.branches)
    with progress_shown("loads", count, quiet=quiet()) as progress:
        report = fleet_report(material, progress)
    if plot is not None:
        write_whole(plot, png_from_fleet(report))
    if as_json:
        click.echo(json_from_report(report).decode(), nl=False)
        return
    for table in tables_of_fleet(report):
        show_table(table)
