"""Measure this project on a GPU: forwards compared with their floor and with torch, tokens, steps, memory, export.

Usage: python -m tools.gpu.report --out DIR [--work DIR] [--device cuda:N] [--dtype bf16].. [--like NAME]
    [--stage programs,checkpoint,export,check,decode,kernels,forward] [--limit-seconds S] [--rounds N]

The program creates a checkpoint with random weights and its bundle in the work folder. This takes 31 GB for dream-7b,
and 15 GB for each further dtype. It writes gpu.json and gpu.md to DIR after every result, so an interrupted run keeps
its results. The next run with the same work folder reuses the folders. A result stays until its stage runs again.
tools/gpu/README.md has the details.
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
from tools.report import command_words, exit_on_error

_DTYPES: dict[str, Dtype] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Write gpu.json and gpu.md to this folder.")
@click.option(
    "--work",
    default="out/gpu-report",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of checkpoint, bundles and results, reused by the next run.",
)
@click.option("--device", default="cuda:0", show_default=True, help="cuda:N, or cpu to test the program.")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    default=("bf16",),
    show_default=True,
    type=click.Choice(list(_DTYPES)),
    help="Data type. Repeatable.",
)
@click.option(
    "--like",
    metavar="NAME",
    default="dream-7b",
    show_default=True,
    type=click.Choice(list(LIKENESSES)),
    help=f"Published model whose sizes the checkpoint has: {', '.join(LIKENESSES)}.",
)
@click.option("--stage", "stages", default=",".join(STAGES), show_default=True, help="Stages, joined by commas.")
@click.option(
    "--limit-seconds",
    default=540.0,
    show_default=True,
    type=float,
    help="Start no program, stage, side or shape later.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Timed forwards per shape.")
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
    """Measure a random checkpoint of a published model's sizes, and print the report.

    Results are written at once. A later run with the same --work folder reuses the checkpoint and the bundles, and
    replaces the results of its stages. The default needs 31 GB of disk. See tools/gpu/README.md for the stages.
    """
    if not (math.isfinite(limit_seconds) and limit_seconds > 0):
        raise BadInputError(
            f"invalid --limit-seconds {limit_seconds}", expected="a positive number", remedy="use a value such as 540"
        )
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
    """Return the stages of `text` in the order in which they run."""
    names = text.split(",")
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        raise BadInputError(
            f"unknown --stage {', '.join(map(repr, unknown))}",
            expected="names out of " + ", ".join(STAGES),
            remedy="use e.g. --stage checkpoint,export",
        )
    return tuple(stage for stage in STAGES if stage in names)


if __name__ == "__main__":
    with exit_on_error():
        main()
