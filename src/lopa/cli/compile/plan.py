"""lopa-export plan: the few shapes (buckets) that engines of a bundle should be built for."""

import contextlib
import math
from pathlib import Path

import click

from lopa.bench.buckets.costs import bucket_costs, bytes_of_bucket
from lopa.bench.buckets.plan import bucket_plan_from_choice
from lopa.bench.buckets.planner import chosen_buckets, limits_from_plans
from lopa.bench.buckets.plot import png_from_buckets
from lopa.bench.buckets.recording import (
    Recording,
    forwards_of_recording,
    joined_recordings,
    recording_from_decoder,
)
from lopa.bench.buckets.rivals import outcome_of_buckets, rival_outcomes
from lopa.bench.buckets.table import table_of_buckets, table_of_outcomes
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.figure import check_matplotlib
from lopa.bench.progress import progress_shown
from lopa.bench.report import check_output
from lopa.bench.table import show_table
from lopa.cli.compile.recording_from_trace import recording_from_trace
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.buckets import BUCKETS_NAME, Source
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.device_families import parse_device, stages_of_device
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.files.output_file import write_whole
from lopa.tiny import EVAL

_BUCKETS = 8
_PROMPTS = 8
"""Of each kind, decoded where no trace is given."""
_SEARCH_SECONDS = 60.0
_GIB = 2**30


def _positive(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:  # noqa: ARG001
    if value is not None and not 0 < value < math.inf:
        raise click.BadParameter(f"{value} is not a positive number")
    return value


@click.command(name="plan")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--trace",
    "traces",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Decodes recorded by generate --trace (may be given several times) [default: decode some embedded prompts].",
)
@click.option(
    "--costs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Measured by bench --costs [default: the device's table in the bundle, else a model].",
)
@click.option("--device", default="cpu", show_default=True, help="The device that is planned for.")
@click.option(
    "--buckets", type=click.IntRange(min=1), default=_BUCKETS, show_default=True, help="At most so many buckets."
)
@click.option(
    "--memory",
    type=float,
    callback=_positive,
    metavar="GIB",
    help="Most memory for inputs, outputs and caches of the largest bucket.",
)
@click.option(
    "--build-seconds",
    type=float,
    callback=_positive,
    help="For building all buckets; with --build-seconds-per-bucket.",
)
@click.option("--build-seconds-per-bucket", type=float, callback=_positive, help="For building one bucket's engine.")
@click.option(
    "--max-prompt",
    type=click.IntRange(min=1),
    help="Tokens of the longest prompt [default: as recorded].",
)
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=1, show_default=True, help="Requests under way at once."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help=f"The plan [default: BUNDLE/{BUCKETS_NAME}].")
@click.option("--json", "as_json", is_flag=True, help="Print the plan itself instead of tables.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="PNG", help="Draw the forwards and the buckets.")
def command(
    bundle: Path,
    traces: tuple[Path, ...],
    costs: Path | None,
    device: str,
    buckets: int,
    memory: float | None,
    build_seconds: float | None,
    build_seconds_per_bucket: float | None,
    max_prompt: int | None,
    parallel: int,
    output: Path | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Choose the few input shapes (buckets) that engines of BUNDLE are built for.

    They follow from recorded decodes and from what a pass through the model (a forward) costs in each shape.

    One bucket takes every forward that the recorded options allow; the others are where most of the time is.
    """
    upper = min(buckets, _affordable_buckets(build_seconds, build_seconds_per_bucket, buckets))
    opened = Bundle.open(bundle)
    manifest = opened.manifest
    if plot is not None:
        check_matplotlib()
    # An engine is compiled for a plan's buckets: before the plan there is nothing to run.
    needs_engine = any(parse_device(stage).family.needs_engine for stage in stages_of_device(device))
    seconds = bucket_costs(opened, device, costs)
    recorded = [recording_from_trace(path, opened) for path in traces]
    target = opened.path / BUCKETS_NAME if output is None else output
    for path in (target, plot):
        if path is not None:
            check_output(path)  # nothing is decoded in vain
    recording = joined_recordings(recorded) if recorded else _recording(opened, None if needs_engine else device)
    forwards = forwards_of_recording(recording, parallel)
    limits = limits_from_plans(
        recording.plans, forwards, recording.longest_prompt if max_prompt is None else max_prompt
    )
    choice = chosen_buckets(
        forwards,
        limits,
        seconds,
        max=upper,
        most_bytes=None if memory is None else int(memory * _GIB),
        bytes_of=lambda sizes: bytes_of_bucket(manifest, sizes),
        seconds=_SEARCH_SECONDS,
    )
    outcome = outcome_of_buckets(f"this plan, {len(choice.buckets)} buckets", choice.buckets, forwards)
    rivals = rival_outcomes(forwards, limits, seconds)
    plan = bucket_plan_from_choice(choice, opened, recording.sources, seconds, outcome, rivals[0])
    write_whole(target, json_from_record(plan))
    if plot is not None:
        write_whole(
            plot, png_from_buckets(forwards, plan.buckets, title=f"{opened.path.resolve().name}: forwards and buckets")
        )
    if as_json:
        click.echo(json_from_record(plan).decode(), nl=False)
        return
    show_table(table_of_buckets(plan, forwards, manifest))
    show_table(table_of_outcomes(plan, [rivals[0], outcome, *rivals[1:]]))


def _affordable_buckets(seconds: float | None, each: float | None, wanted: int) -> int:
    """How many buckets can be built in the time given; `wanted` without a bound."""
    if (seconds is None) != (each is None):
        raise click.UsageError("--build-seconds and --build-seconds-per-bucket go together")
    if seconds is None or each is None:
        return wanted
    if seconds < each:
        raise BadInputError(
            f"{seconds:g} seconds to build buckets that take {each:g} each",
            expected=f"at least {each:g} seconds, for the one bucket that takes everything",
            remedy="raise --build-seconds",
        )
    return int(seconds // each)


def _recording(bundle: Bundle, device: str | None) -> Recording:
    """Of prompts that are decoded now; `device` None: on this machine's processor."""
    items = eval_set_from_jsonl(EVAL, limit=_PROMPTS)
    with _decoder(bundle, device) as decoder, progress_shown("prompts", len(items), quiet=quiet()) as progress:
        return recording_from_decoder(
            decoder,
            [item.prompt for item in items],
            lambda forwards: Source(
                name=f"{EVAL.name}, {len(items)} prompts, decoded now", sha256=sha256_of_file(EVAL), forwards=forwards
            ),
            progress,
        )


def _decoder(bundle: Bundle, device: str | None) -> Decoder:
    """On `device`, or on the processor where its library is not here: the sizes of a decode hardly depend on it.

    ONNX Runtime computes no bfloat16 on a processor, numpy does, slowly.
    """
    if device is not None:
        with contextlib.suppress(MissingBackendError):
            return Decoder.open(bundle.path, [device])
    return Decoder.open(bundle.path, ["numpy" if bundle.manifest.dtype == "bfloat16" else "cpu"])
