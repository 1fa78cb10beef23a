"""Measure this project on a GPU: one forward beside its floor and beside torch, tokens, steps, memory, export.

Usage: python -m tools.gpu.report --out DIR [--work DIR] [--device cuda:N] [--dtype bf16].. [--like NAME]
    [--stage checkpoint,export,check,decode,forward] [--limit-seconds S] [--rounds N]

Makes a checkpoint with random weights and its bundle in the work folder (31 GB for dream-7b, 15 more for each further
dtype), and writes gpu.json and gpu.md to DIR after every result, so that a run that is cut off leaves what it had. With
the same work folder the next run goes on: folders are used again, and results stay until their stage runs again.
tools/gpu/README.md says more.
"""

import math
import shlex
from pathlib import Path

import click

from lopa.bench.gpu.results import STAGES, Stage
from lopa.export.weights.plan import Dtype
from lopa.runtime.errors import BadInputError
from tools.checkpoint.likeness import LIKENESSES
from tools.gpu.run import TEXT_NAME, Settings
from tools.gpu.stages import check_results, gpu_report
from tools.report import command_words
from tools.shown_errors import errors_shown

_DTYPES: dict[str, Dtype] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Write gpu.json and gpu.md there.")
@click.option(
    "--work",
    default="out/gpu-report",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Keep checkpoint, bundles and results there for the next run.",
)
@click.option("--device", default="cuda:0", show_default=True, help="cuda:N, or cpu to try the program.")
@click.option(
    "--dtype", "dtypes", multiple=True, default=("bf16",), show_default=True, type=click.Choice(list(_DTYPES))
)
@click.option("--like", default="dream-7b", show_default=True, type=click.Choice(list(LIKENESSES)))
@click.option("--stage", "stages", default=",".join(STAGES), show_default=True, help="Which stages, with commas.")
@click.option(
    "--limit-seconds", default=540.0, show_default=True, type=float, help="After this nothing new is started."
)
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Timed forwards of a shape.")
def main(
    out: Path,
    work: Path,
    device: str,
    dtypes: tuple[str, ...],
    like: str,
    stages: str,
    limit_seconds: float,
    rounds: int,
) -> None:
    """Run the stages and print the report."""
    if not (math.isfinite(limit_seconds) and limit_seconds > 0):
        raise BadInputError(f"--limit-seconds {limit_seconds}", expected="a positive number", remedy="e.g. 540")
    settings = Settings(
        name=like,
        likeness=LIKENESSES[like],
        out=out,
        work=work,
        command=shlex.join(command_words()),
        device=device,
        dtypes=tuple(dict.fromkeys(_DTYPES[dtype] for dtype in dtypes)),
        stages=_stages_from_text(stages),
        limit_seconds=limit_seconds,
        rounds=rounds,
    )
    results = gpu_report(settings, lambda line: click.echo(line, err=True))
    click.echo((out / TEXT_NAME).read_text())
    check_results(results)


def _stages_from_text(text: str) -> tuple[Stage, ...]:
    """In the order in which they run, whatever the order in `text`."""
    names = text.split(",")
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        raise BadInputError(
            f"--stage with {', '.join(map(repr, unknown))}",
            expected="stages among " + ", ".join(STAGES),
            remedy="e.g. --stage checkpoint,export",
        )
    return tuple(stage for stage in STAGES if stage in names)


if __name__ == "__main__":
    with errors_shown():
        main()
