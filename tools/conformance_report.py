"""Decode every recorded prompt of the published implementation and print how the steps compare.

Usage: python tools/conformance_report.py BUNDLE [DEVICE] [--dialect portable]
"""

import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.conformance.recorded import comparisons_of_file, trace_files

from lopa.runtime.bundle import Bundle
from lopa.runtime.manifest import Dialect
from lopa.runtime.session import open_session


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("device", default="cpu")
@click.option("--dialect", type=click.Choice(["standard", "portable"]), help="Which graph, where there are two.")
def main(bundle: Path, device: str, dialect: Dialect | None) -> None:
    """Print a line per recorded configuration, and the sums."""
    opened = Bundle.open(bundle)
    if dialect is not None:
        opened = opened.of_dialect(dialect)
    session = open_session(opened, device, threads=1)
    header = ("configuration", "traces", "steps", "near-ties", "decided otherwise at one", "mismatches")
    click.echo("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    sums = [0] * (len(header) - 1)
    for path in trace_files():
        found = comparisons_of_file(path, session, opened.manifest)
        counts = [
            len(found),
            sum(each.steps for each in found),
            sum(each.near_ties for each in found),
            sum(each.diverged_at is not None for each in found),
            sum(each.mismatch is not None for each in found),
        ]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        click.echo(f"| {path.name.split('.')[0]} | " + " | ".join(map(str, counts)) + " |")
    click.echo("| all | " + " | ".join(map(str, sums)) + " |")
    session.close()
    sys.exit(1 if sums[-1] else 0)


if __name__ == "__main__":
    main()
