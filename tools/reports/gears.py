"""Plan gears for every recorded LoPA configuration and print what they cost against other choices of shapes.

Usage: python -m tools.reports.gears BUNDLE [--device D] [--gears N ..]
"""

from pathlib import Path

import click
from tests.conformance.recorded import recording_of_file, trace_files

from lopa.bench.gears.costs import GearCosts, bytes_of_gear, gear_costs
from lopa.bench.gears.planner import chosen_gears, limits_from_plans
from lopa.bench.gears.recording import Recording, forwards_of_recording, joined_recordings
from lopa.bench.gears.rivals import outcome_of_gears, rival_outcomes
from lopa.bench.table import Table, markdown_from_table
from lopa.runtime.bundle import Bundle


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--device", default="cpu")
@click.option("--gears", "numbers", type=click.IntRange(min=1), multiple=True, default=(4, 8, 12))
def main(bundle: Path, device: str, numbers: tuple[int, ...]) -> None:
    """Print a line per recorded configuration, each with plans of its own, and one for a plan for all of them."""
    opened = Bundle.open(bundle)
    costs = gear_costs(opened, device, None)
    recordings = {path.name.split(".")[0]: recording_of_file(path) for path in trace_files() if "lopa" in path.name}
    recordings["all of them"] = joined_recordings(list(recordings.values()))
    rows = [_row(name, recording, opened, costs, numbers) for name, recording in recordings.items()]
    table = Table(
        title=f"Expected time over no padding, %; different shapes in brackets: {costs.about.kind} costs, {device}",
        columns=(
            "configuration", "forwards", *(f"{number} gears" for number in numbers), "vllm-ascend", "xLLM",
            "powers of two", "largest",
        ),
        rows=tuple(rows),
    )  # fmt: skip
    click.echo(markdown_from_table(table))


def _row(
    name: str, recording: Recording, bundle: Bundle, costs: GearCosts, numbers: tuple[int, ...]
) -> tuple[str, ...]:
    forwards = forwards_of_recording(recording, 1)
    limits = limits_from_plans(recording.plans, forwards, recording.longest_prompt)
    unpadded, *rivals = rival_outcomes(forwards, limits, costs)
    plans = []
    for number in numbers:
        choice = chosen_gears(
            forwards,
            limits,
            costs,
            most=number,
            most_bytes=None,
            bytes_of=lambda sizes: bytes_of_gear(bundle.manifest, sizes),
            seconds=60,
        )
        if choice.least_share < 1:
            click.echo(f"{name}: {number} gears may be {100 * (1 - choice.least_share):.3f} % from the best", err=True)
        plans.append(outcome_of_gears(name, choice.gears, forwards))
    cells = (f"{100 * (each.seconds / unpadded.seconds - 1):.1f} ({each.shapes})" for each in (*plans, *rivals))
    return (name, f"{forwards.total()}", *cells)


if __name__ == "__main__":
    main()
