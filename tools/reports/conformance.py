"""Decode every recorded prompt of the published implementation and print how the steps compare.

Usage: python -m tools.reports.conformance BUNDLE [DEVICE] [--devices 1,2,4] [--dialect portable]

{} in DEVICE is the number of a session: ascend:{} is ascend:0, ascend:1 and so on.
"""

import sys
from pathlib import Path

import click
from tests.conformance.recorded import Comparison, comparisons_of_file, trace_files

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Dialect
from lopa.runtime.parallel.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session

_HEADER = (
    "configuration",
    "devices",
    "traces",
    "steps",
    "near-ties",
    "decided otherwise at one",
    "mismatches",
    "other than on the first number of devices",
)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("device", default="cpu")
@click.option(
    "--devices", default="1", show_default=True, help="Numbers of sessions on DEVICE that share the branches."
)
@click.option("--limit", type=click.IntRange(min=1), help="At most so many traces of each configuration.")
@click.option("--dialect", type=click.Choice(["standard", "portable"]), help="Which graph, where there are two.")
def main(bundle: Path, device: str, devices: str, limit: int | None, dialect: Dialect | None) -> None:
    """Print a line per recorded configuration and number of devices, and the sums."""
    opened = Bundle.open(bundle)
    if dialect is not None:
        opened = opened.of_dialect(dialect)
    counts = [int(count) for count in devices.split(",")]
    click.echo("| " + " | ".join(_HEADER) + " |\n|" + "---|" * len(_HEADER))
    sums = {count: [0] * (len(_HEADER) - 2) for count in counts}
    for path in trace_files():
        first: list[Comparison] = []
        for count in counts:
            session = _session(opened, device, count)
            found = comparisons_of_file(path, session, opened.manifest, limit=limit)
            session.close()
            first = first or found
            row = _row(found, first)
            sums[count] = [a + b for a, b in zip(sums[count], row, strict=True)]
            click.echo(f"| {path.name.split('.')[0]} | {count} | " + " | ".join(map(str, row)) + " |")
            for each in found:
                if each.mismatch is not None:
                    click.echo(f"{path.name.split('.')[0]} on {count}: {each.mismatch}", err=True)
    for count in counts:
        click.echo(f"| all | {count} | " + " | ".join(map(str, sums[count])) + " |")
    sys.exit(1 if any(row[-2] for row in sums.values()) else 0)


def _session(bundle: Bundle, device: str, count: int) -> Session:
    sessions = [open_session(bundle, device.format(number), threads=1) for number in range(count)]
    return sessions[0] if count == 1 else BranchParallelSession(sessions)


def _row(found: list[Comparison], first: list[Comparison]) -> list[int]:
    return [
        len(found),
        sum(each.steps for each in found),
        sum(each.near_ties for each in found),
        sum(each.diverged_at is not None for each in found),
        sum(each.mismatch is not None for each in found),
        sum(each.decided != other.decided for each, other in zip(found, first, strict=True)),
    ]


if __name__ == "__main__":
    main()
