"""One forward of bundles beside PyTorch eager in float32 and bfloat16: same windows, same prefix, in turns.

Usage: python -m tools.reports.forward BUNDLE.. --checkpoint DIR [--lora DIR] [--threads N] [--rounds N] [--prefix P]
    [--shape BxW].. [--wanted Q].. [--output DIR]

All bundles are of the same checkpoint. The eager side computes the logits of every window row, as published, and the
statistics of the wanted ones; it runs the branches one after another, as published, and all in one batch, which is what
the times are compared with.
"""

import re
import shlex
import sys
from pathlib import Path

import click
import torch

from lopa.bench.forward.comparison import ForwardReport, compared_forwards, table_from_forwards
from lopa.bench.forward.work import ForwardShape
from lopa.bench.machine import date_now, machine_now
from lopa.bench.progress import progress_shown
from lopa.bench.report import check_output, files_of_report, write_report
from lopa.bench.speed.eager_model import eager_model_from_checkpoint
from lopa.bench.speed.eager_session import EagerSession
from lopa.bench.speed.measure import torch_threads
from lopa.bench.table import show_table
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.session import Session, open_session
from tools.shown_errors import errors_shown


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--checkpoint", required=True, type=click.Path(path_type=Path), help="What the bundles were made from.")
@click.option("--lora", type=click.Path(path_type=Path), help="Their adapter.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--prefix", type=click.IntRange(min=1), default=512, show_default=True)
@click.option("--shape", "sizes", multiple=True, default=("1x64", "4x64", "8x64"), help="Branches x window.")
@click.option("--wanted", type=click.IntRange(min=1), multiple=True, help="Rows wanted of each branch [default: all].")
@click.option("--output", type=click.Path(path_type=Path), help="Write forward.json and forward.md there.")
def main(
    bundles: tuple[Path, ...],
    checkpoint: Path,
    lora: Path | None,
    threads: int,
    rounds: int,
    prefix: int,
    sizes: tuple[str, ...],
    wanted: tuple[int, ...],
    output: Path | None,
) -> None:
    """Print a line for every side and shape."""
    shapes = [shape for size in sizes for shape in _shapes_of_size(size, prefix, wanted)]
    for path in () if output is None else files_of_report(output, "forward"):
        check_output(path)
    model = eager_model_from_checkpoint(checkpoint, lora)
    half = eager_model_from_checkpoint(checkpoint, lora, dtype=torch.bfloat16)
    sides: dict[str, Session] = {
        "torch float32, in a batch": EagerSession(model, together=True),
        "torch float32, one by one": EagerSession(model),
        "torch bfloat16, in a batch": EagerSession(half, together=True),
        "torch bfloat16, one by one": EagerSession(half),
    }
    opened = [Bundle.open(path) for path in bundles]
    for bundle in opened:
        if bundle.manifest.dimensions != opened[0].manifest.dimensions or bundle.manifest.dtype != "float32":
            raise BadInputError(
                f"{bundle.path} is {bundle.manifest.dtype} or of other sizes than {opened[0].path}",
                expected="float32 bundles, quantized or not, of one checkpoint",
                remedy="give bundles of one checkpoint",
            )
        sides[f"lopa {bundle.path.name}"] = open_session(bundle, "cpu", threads=threads)
    with torch_threads(threads), progress_shown("rounds", rounds * len(shapes)) as progress:
        results = compared_forwards(sides, opened[0].manifest, shapes, rounds, progress)
    command = shlex.join(["python", "-m", "tools.reports.forward", *sys.argv[1:]])
    report = ForwardReport("forward", date_now(), command, machine_now(), threads, rounds, results)
    table = table_from_forwards(report)
    show_table(table)
    if output is not None:
        write_report(output, "forward", report, [table])


def _shapes_of_size(size: str, prefix: int, wanted: tuple[int, ...]) -> list[ForwardShape]:
    """The shapes of "4x64"; a number of wanted rows beyond the window means all of them."""
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", size, re.ASCII)
    if found is None:
        raise BadInputError(f"--shape {size!r}", expected="branches x window", remedy="e.g. --shape 4x64")
    branches, window = int(found[1]), int(found[2])
    return [ForwardShape(branches, window, prefix, min(rows, window)) for rows in wanted or (window,)]


if __name__ == "__main__":
    with errors_shown():
        main()
