"""lopa-export bench: quality against speed, our decoder beside an eager loop, scaling, a cost table, a cold start,
recorded decodes.
"""

from pathlib import Path

import click

from lopa.bench.quality.variants import SWEEPS
from lopa.cli.measure.cold import bench_cold
from lopa.cli.measure.costs import bench_costs
from lopa.cli.measure.decodes import bench_decodes
from lopa.cli.measure.quality import bench_quality
from lopa.cli.measure.report_output import ReportOutput
from lopa.cli.measure.scaling import bench_scaling
from lopa.cli.measure.speed import bench_speed
from lopa.cli.options.devices import counts_from_text, device_options
from lopa.runtime.device_families import uses_all_cores

_SPEED_PROMPTS = 8
_SPEED_BRANCHES = 5
_SCALING_PROMPTS = 4
_SCALING_BRANCHES = 8
_RECORDED_PROMPTS = 20
_GOES_WITH = {
    "--plot": ("--quality", "--devices"),
    "--strategies": ("--quality",),
    "--resume": ("--quality",),
    "--checkpoint": ("--speed",),
    "--lora": ("--speed",),
    "--adapter-apart": ("--speed",),
    "--branches": ("--speed", "--devices"),
    "--limit": ("--quality", "--speed", "--devices", "--decodes"),
}
"""Options that some benchmarks alone know."""


@click.command(name="bench")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--quality",
    type=click.Path(path_type=Path),
    metavar="EVAL",
    help='Score and speed of every strategy on the prompts of a JSON-lines file: {"prompt", "answer", "kind"}.',
)
@click.option(
    "--strategies",
    metavar="NAMES",
    help="With --quality: names with commas between them, each measured with one of its options at several values "
    f"({', '.join(SWEEPS)}); or a set: recommended (8 configurations), published (8 or 9), all (more than 100)  "
    "[default: published]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="With --quality: keep the outcomes that are in --output and decode the others, also of more strategies.",
)
@click.option("--speed", is_flag=True, help="Seconds per step beside a PyTorch eager loop on the same weights (CPU).")
@click.option(
    "--costs",
    is_flag=True,
    help="Seconds of a forward by branches, window and prefix beside what the machine could do; stored in the bundle "
    "for --branches auto. Takes a minute for a small model, some ten for a large one; when it is stopped after its "
    "first rounds, what was measured is kept.",
)
@click.option(
    "--decodes",
    metavar="1,2,..",
    help="Decode the embedded prompts with so many branches each, and keep the sizes of every step (--output) for "
    "lopa-export simulate.",
)
@click.option("--cold", is_flag=True, help="Seconds from the import of the runtime to the first forward.")
@click.option(
    "--devices",
    "counts",
    metavar="1,2,..",
    help="Steps and tokens per second on so many devices of one core each, beside the model of "
    "docs/measurements/scale.md, and what it projects for more devices and other links.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="PNG",
    help="With --quality: draw score against tokens per forward and per second. With --devices: draw speed against "
    "devices.",
)
@click.option("--checkpoint", type=click.Path(path_type=Path), metavar="DIR", help="With --speed: the bundle's origin.")
@click.option("--lora", type=click.Path(path_type=Path), metavar="DIR", help="With --speed: its adapter.")
@click.option(
    "--adapter-apart",
    is_flag=True,
    help="With --speed: the eager loop runs the adapter beside the matrices, as published, in place of merged.",
)
@click.option(
    "--branches",
    type=int,
    help=f"Branches per step [default: --speed {_SPEED_BRANCHES}, --devices {_SCALING_BRANCHES}].",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"At most so many prompts of each kind [default: --quality all, --speed {_SPEED_PROMPTS}, --devices "
    f"{_SCALING_PROMPTS}, --decodes {_RECORDED_PROMPTS}].",
)
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write the report there: JSON, Markdown."
)
@device_options
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads [default: the engine's choice; --speed and --devices 1]."
)
def command(
    bundle: Path,
    quality: Path | None,
    strategies: str | None,
    resume: bool,
    speed: bool,
    costs: bool,
    decodes: str | None,
    cold: bool,
    counts: str | None,
    plot: Path | None,
    checkpoint: Path | None,
    lora: Path | None,
    adapter_apart: bool,
    branches: int | None,
    limit: int | None,
    output: Path | None,
    devices: tuple[str, ...],
    device_timeout: float,
    threads: int | None,
) -> None:
    """Measure BUNDLE by one of --quality, --speed, --costs, --decodes, --cold and --devices.

    The tables go to standard output.
    """
    asked = {
        "--quality": quality is not None,
        "--speed": speed,
        "--costs": costs,
        "--decodes": decodes is not None,
        "--cold": cold,
        "--devices": counts is not None,
    }
    given = {
        "--plot": plot is not None,
        "--strategies": strategies is not None,
        "--resume": resume,
        "--checkpoint": checkpoint is not None,
        "--lora": lora is not None,
        "--adapter-apart": adapter_apart,
        "--branches": branches is not None,
        "--limit": limit is not None,
    }
    _check_usage([name for name in asked if asked[name]], [name for name in given if given[name]])
    files = ReportOutput(output, plot)
    if quality is not None:
        if resume and output is None:
            raise click.UsageError("--resume needs --output, where the outcomes are")
        bench_quality(
            bundle,
            quality,
            strategies=strategies,
            limit=limit,
            resume=resume,
            output=files,
            devices=devices,
            device_timeout=device_timeout,
            threads=threads,
        )
    elif costs:
        bench_costs(bundle, output=files, devices=devices, device_timeout=device_timeout, threads=threads)
    elif decodes is not None:
        bench_decodes(
            bundle,
            counts_from_text(decodes, "--decodes", "branch"),
            limit=_RECORDED_PROMPTS if limit is None else limit,
            output=output,
            devices=devices,
            device_timeout=device_timeout,
            threads=threads,
        )
    elif cold:
        bench_cold(bundle, output=files, devices=devices, threads=threads)
    elif counts is not None:
        if devices != ("cpu",) or threads not in (None, 1):
            raise click.UsageError("--devices names devices of one core each itself: leave --device and --threads out")
        bench_scaling(
            bundle,
            counts_from_text(counts),
            branches=_SCALING_BRANCHES if branches is None else branches,
            limit=_SCALING_PROMPTS if limit is None else limit,
            output=files,
            device_timeout=device_timeout,
        )
    else:
        if checkpoint is None:
            raise click.UsageError("--speed needs --checkpoint, from which the eager loop reads its weights")
        if len(devices) != 1 or not uses_all_cores(devices[0]):
            raise click.UsageError("--speed compares on the CPU only: leave --device out, or give openvino:CPU")
        bench_speed(
            bundle,
            checkpoint,
            lora,
            adapter_apart=adapter_apart,
            branches=_SPEED_BRANCHES if branches is None else branches,
            limit=_SPEED_PROMPTS if limit is None else limit,
            output=files,
            device=devices[0],
            threads=1 if threads is None else threads,
        )


def _check_usage(asked: list[str], given: list[str]) -> None:
    """`asked` are the benchmarks on the command line, `given` the options that not all of them know."""
    if len(asked) != 1:
        raise click.UsageError(
            "give one of --quality EVAL, --speed, --costs, --decodes 1,2,.., --cold and --devices 1,2,.."
        )
    for name in given:
        if asked[0] not in _GOES_WITH[name]:
            raise click.UsageError(f"{name} goes with {' and '.join(_GOES_WITH[name])}")
