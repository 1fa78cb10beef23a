"""How long the stages of a pipeline work and wait, from a file of `lopa-export generate --timeline`, and its picture.

Usage: python -m tools.reports.timeline FILE [--plot PNG --first STEP --last STEP]
"""

from pathlib import Path

import click

from lopa.bench.figure import check_matplotlib
from lopa.bench.scaling.pipeline_use import use_from_spans
from lopa.bench.scaling.timeline_plot import png_from_spans
from lopa.bench.table import Table, show_table
from lopa.runtime.contract.timeline import spans_from_json


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--plot", type=click.Path(path_type=Path), metavar="PNG", help="Draw the steps from --first to --last.")
@click.option("--first", default=1, show_default=True, help="First step to draw.")
@click.option("--last", default=3, show_default=True, help="Last step to draw.")
def main(file: Path, plot: Path | None, first: int, last: int) -> None:
    """Print each stage's busy share of the forwards in FILE, and what of the idle rest is filling and draining."""
    try:
        spans = spans_from_json(file.read_text(encoding="utf-8"))
        use = use_from_spans(spans)
        if plot is not None:
            check_matplotlib()
            plot.write_bytes(png_from_spans(spans, first, last))
    except ValueError as error:
        raise click.ClickException(f"{file}: {error}") from error
    rows = [(stage, f"{seconds:.3f}", f"{seconds / use.seconds:.1%}") for stage, seconds in use.busy.items()]
    show_table(Table(file.name, ("stage", "busy s", "of the forwards"), tuple(rows)))
    print(
        f"{use.forwards} forwards in {use.seconds:.3f} s; idle {use.idle:.1%} of the stages' time, "
        f"of which filling and draining alone {use.filling:.1%}"
    )


if __name__ == "__main__":
    main()
