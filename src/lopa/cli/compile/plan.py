"""lopa-export plan: chooses the shape buckets that engines of a bundle are built for."""

import contextlib
from pathlib import Path

import click

from lopa.bench.buckets.bucket_costs import bucket_costs, bytes_of_bucket
from lopa.bench.buckets.bucket_plan import bucket_plan_from_choice
from lopa.bench.buckets.bucket_table import table_of_buckets, table_of_expected
from lopa.bench.buckets.forward_recording import (
    Recording,
    forwards_of_recording,
    join_recordings,
    recording_from_decoder,
)
from lopa.bench.buckets.planner import choose_shape_buckets, limits_from_params
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import show_progress
from lopa.bench.report import check_output
from lopa.bench.table import show_table
from lopa.cli.compile.recording_from_step_log import recording_from_step_log
from lopa.cli.options.devices import software_gpu_option
from lopa.cli.program.grouped_command import GroupedCommand, PositiveNumber, option
from lopa.cli.program.verbosity import quiet
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.buckets import BUCKETS_NAME, ShapeSource
from lopa.runtime.bundle.bundle import check_no_canvases
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.decoder import Decoder
from lopa.runtime.device_families import full_device_name, parse_device, stages_of_device
from lopa.runtime.errors import BadInputError, MissingBackendError
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.hub.hub_bundle import check_own_bundle
from lopa.tiny import EVAL

_BUCKETS = 8
_PROMPTS = 8
"""Number of embedded prompts of each kind to decode when no step_log is given."""
_SEARCH_SECONDS = 60.0
_GIB = 2**30


@click.command(
    name="plan",
    cls=GroupedCommand,
    examples=(
        "lopa-export plan BUNDLE --buckets 4",
        "lopa-export plan BUNDLE --step-log STEPS.jsonl --device tensorrt:0 -o PLAN.json",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "--step-log",
    "step_logs",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    show_default="decodes some embedded prompts",
    help="Recorded decodes, written by generate --step-log. Repeatable.",
)
@option(
    "--costs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="the device's table in BUNDLE, otherwise a model",
    help="Cost table, written by bench costs.",
)
@software_gpu_option
@option("--device", default="cpu", help="Device to plan for.")
@option("--buckets", type=click.IntRange(min=1), default=_BUCKETS, help="Maximum number of shape buckets.")
@option(
    "--memory",
    type=PositiveNumber(),
    metavar="GIB",
    help="Maximum memory for inputs, outputs and caches of the largest bucket.",
)
@option(
    "--build-seconds",
    type=PositiveNumber(),
    help="Maximum time to build all buckets, in seconds. Needs --build-seconds-per-bucket.",
)
@option("--build-seconds-per-bucket", type=PositiveNumber(), help="Expected time to build one bucket, in seconds.")
@option(
    "--max-prompt",
    type=click.IntRange(min=1),
    show_default="as recorded",
    help="Number of tokens of the longest prompt.",
)
@option("--max-num-seqs", type=click.IntRange(1, 64), default=1, help="Number of concurrent requests.")
@option(
    "-o", "--output", type=click.Path(path_type=Path), show_default=f"BUNDLE/{BUCKETS_NAME}", help="File for the plan."
)
@option("--json", "as_json", is_flag=True, help="Print the plan itself instead of tables.")
def command(
    bundle: Path,
    step_logs: tuple[Path, ...],
    costs: Path | None,
    device: str,
    buckets: int,
    memory: float | None,
    build_seconds: float | None,
    build_seconds_per_bucket: float | None,
    max_prompt: int | None,
    max_num_seqs: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Choose the few input shapes (shape buckets) that engines of BUNDLE are built for.

    The choice is based on recorded decodes and on the cost of a pass through the model (a forward) in each shape. One
    bucket fits every forward that the recorded options allow. The others are placed where most of the time is spent.
    """
    most = min(buckets, _affordable_buckets(build_seconds, build_seconds_per_bucket, buckets))
    check_own_bundle(bundle)
    opened = Bundle.open(bundle)
    check_no_canvases(opened, "shape buckets")
    manifest = opened.manifest
    # An engine is compiled for the buckets of a plan, so no engine can run yet.
    needs_engine = any(parse_device(stage).family.needs_engine for stage in stages_of_device(device))
    seconds = bucket_costs(opened, full_device_name(device), costs)
    recorded = [recording_from_step_log(path, opened) for path in step_logs]
    target = opened.path / BUCKETS_NAME if output is None else output
    check_output(target)  # before anything is decoded
    recording = join_recordings(recorded) if recorded else _recording(opened, None if needs_engine else device)
    forwards = forwards_of_recording(recording, max_num_seqs)
    limits = limits_from_params(
        recording.params, forwards, recording.longest_prompt if max_prompt is None else max_prompt
    )
    choice = choose_shape_buckets(
        forwards,
        limits,
        seconds,
        max=most,
        max_bytes=None if memory is None else int(memory * _GIB),
        bytes_of=lambda sizes: bytes_of_bucket(manifest, sizes),
        seconds=_SEARCH_SECONDS,
    )
    plan = bucket_plan_from_choice(choice, opened, recording.sources, forwards, seconds)
    write_atomically(target, json_from_record(plan))
    if as_json:
        click.echo(json_from_record(plan).decode(), nl=False)
        return
    show_table(table_of_buckets(plan, forwards, manifest))
    show_table(table_of_expected(plan, forwards))


def _affordable_buckets(seconds: float | None, each: float | None, wanted: int) -> int:
    """Return the number of buckets that can be built in `seconds`, or `wanted` if `seconds` is None."""
    if (seconds is None) != (each is None):
        raise click.UsageError("--build-seconds and --build-seconds-per-bucket must be given together")
    if seconds is None or each is None:
        return wanted
    if seconds < each:
        raise BadInputError(
            f"{seconds:g} seconds to build buckets of {each:g} seconds each",
            expected=f"at least {each:g} seconds, for the one bucket that fits every forward",
            remedy="raise --build-seconds",
        )
    return int(seconds // each)


def _recording(bundle: Bundle, device: str | None) -> Recording:
    """Record decodes of the embedded prompts on `device`, or on the CPU if it is None."""
    items = eval_set_from_jsonl(EVAL, limit=_PROMPTS)
    with _decoder(bundle, device) as decoder, show_progress("prompts", len(items), quiet=quiet()) as progress:
        return recording_from_decoder(
            decoder,
            [item.prompt for item in items],
            lambda forwards: ShapeSource(
                name=f"{EVAL.name}, {len(items)} prompts, decoded now", sha256=sha256_of_file(EVAL), forwards=forwards
            ),
            progress,
        )


def _decoder(bundle: Bundle, device: str | None) -> Decoder:
    """Open the bundle on `device`, or on the CPU if its library is missing: sizes hardly depend on the device.

    ONNX Runtime has no bfloat16 on CPUs, so numpy decodes such a bundle, slowly.
    """
    if device is not None:
        with contextlib.suppress(MissingBackendError):
            return Decoder.open(bundle.path, [device])
    return Decoder.open(bundle.path, ["numpy" if bundle.manifest.dtype == "bfloat16" else "cpu"])
