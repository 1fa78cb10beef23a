"""The servers of a scenario on this machine, beside what `lopa-export simulate` says of them.

Usage: python -m tools.fleet.load SCENARIO BUNDLE [-o FOLDER]

Each replica is a server process with one thread on a core of its own; the clients are this process, and take from what
they measure. Requests come at the moments, with the prompts and to the replicas that the simulation drew, for every
load and number of branches of the scenario. Prints measured, simulated and error; with -o writes fleet.json and
fleet.md too.
"""

import sys
from pathlib import Path

import click

from lopa.bench.fleet.costs import costs_of_material
from lopa.bench.fleet.fleet import simulated
from lopa.bench.fleet.point import point_of_run
from lopa.bench.fleet.scenario import UNDER_LOAD, Scenario, material_from_file
from lopa.bench.report import make_folder, run_now, write_report
from lopa.bench.table import show_table
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from tools.fleet.comparison import Comparison, FleetComparison, table_of_comparison
from tools.fleet.measure import measured, servers_of_scenario
from tools.shown_errors import errors_shown


@click.command()
@click.argument("path", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for fleet.json and fleet.md.")
def main(path: Path, bundle: Path, output: Path | None) -> None:
    """Measure, and show both."""
    with errors_shown():
        material = material_from_file(path)
        scenario = material.scenario
        _check_can_be_run(path, scenario)
        run = run_now(Bundle.open(bundle), device="cpu", threads=1, arguments=["tools.fleet.load", *sys.argv[1:]])
        if output is not None:
            make_folder(output)
        costs = costs_of_material(material)
        compared = []
        with servers_of_scenario(bundle, scenario) as servers:
            for load in scenario.loads:
                for branches in scenario.branches:
                    expected = simulated(material, costs, load, branches)
                    found = measured(material, expected, load, branches, servers)
                    point = point_of_run(scenario, load, branches, expected)
                    compared.append(Comparison(found, point))
        report = FleetComparison(run, scenario, tuple(compared))
        table = table_of_comparison(report)
        if output is not None:
            write_report(output, "fleet", report, [table])
    show_table(table)


def _check_can_be_run(path: Path, scenario: Scenario) -> None:
    for wrong, received in (
        (scenario.failures is not None, "failures"),
        (scenario.retry is not None, "retry"),
        (scenario.prompts is not None, "prompts"),
        (UNDER_LOAD in scenario.branches, f"branches {UNDER_LOAD!r}"),
    ):
        if wrong:
            raise BadInputError(
                f"{path} has {received}", expected="what real servers do without", remedy="leave it out of the file"
            )


if __name__ == "__main__":
    main()
