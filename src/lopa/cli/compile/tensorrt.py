"""lopa-export tensorrt: compiles an engine with TensorRT for this machine's GPU, or with TensorRT for RTX."""

from pathlib import Path

import click

from lopa.bench.progress import Progress
from lopa.cli.options.devices import buckets_option
from lopa.cli.program.grouped_command import GroupedCommand, PositiveNumber, option
from lopa.cli.program.verbosity import quiet
from lopa.export.extra import export_extra_needed
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import bucket_plan_from_file
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.hub.hub_bundle import check_own_bundle
from lopa.runtime.tensorrt.tensorrt_library import RTX, TENSORRT
from lopa.runtime.tensorrt.tensorrt_manifest import LAYERS_NAME, BuildFlags, TensorRTEngine, target_of_device

_PATH = click.Path(path_type=Path)
_GIB = 2**30


@click.command(
    name="tensorrt",
    cls=GroupedCommand,
    examples=(
        "lopa-export tensorrt BUNDLE",
        "lopa-export tensorrt BUNDLE --buckets PLAN.json --timing-cache CACHE --fp8",
        "lopa-export tensorrt BUNDLE --rtx --compute-capability 8.9",
    ),
)
@click.argument("bundle", type=_PATH)
@buckets_option
@option(
    "--workspace",
    type=PositiveNumber(),
    metavar="GIB",
    show_default="all memory of the GPU",
    help="Maximum scratch memory of a kernel.",
)
@option(
    "--timing-cache",
    type=_PATH,
    metavar="FILE",
    show_default="one in BUNDLE/engines",
    help="File with measured kernel times, read and updated, to avoid measuring again.",
)
@option("--weight-streaming", is_flag=True, help="Allow weights to stay in host memory, for a small GPU.")
@option("--strip-weights", is_flag=True, help="Omit the weights from the engine and load them from BUNDLE.")
@option("--version-compatible", is_flag=True, help="Allow later versions of TensorRT to run the engine, more slowly.")
@option("--plugins", is_flag=True, help="Use the kernels of lopa.plugins. BUNDLE must be exported with --plugins.")
@option("--int8", is_flag=True, help="Compute products with weights in int8. BUNDLE must have float weights.")
@option("--fp8", is_flag=True, help="Compute products with weights in fp8. BUNDLE must have float weights.")
@option("--rtx", is_flag=True, help="Build with TensorRT for RTX, for many GPUs. This machine needs no GPU.")
@option(
    "--compute-capability",
    "capabilities",
    multiple=True,
    metavar="N.N",
    show_default="8.0 and later",
    help="Compute capability to build for, e.g. 8.9. Needs --rtx. Repeatable.",
)
def command(
    bundle: Path,
    buckets: Path | None,
    workspace: float | None,
    timing_cache: Path | None,
    weight_streaming: bool,
    strip_weights: bool,
    version_compatible: bool,
    plugins: bool,
    int8: bool,
    fp8: bool,
    rtx: bool,
    capabilities: tuple[str, ...],
) -> None:
    """Compile the standard graph of BUNDLE for the first CUDA device, with an optimization profile per shape bucket.

    With --rtx, compile for all RTX GPUs of the given compute capabilities, on a machine with or without a GPU. Kernels
    are then generated on the machine that opens the engine.

    The engine is written to BUNDLE/engines. Operators and shapes that TensorRT's parser is known to reject are reported
    before it runs. An up-to-date engine is kept.
    """
    if int8 and fp8:
        raise click.UsageError("--int8 and --fp8: choose one")
    if capabilities and not rtx:
        raise click.UsageError("--compute-capability needs --rtx: TensorRT builds for the GPU of this machine")
    with export_extra_needed("reading ONNX graphs"):
        from lopa.export.tensorrt.bucket_coverage import check_buckets_cover_defaults
        from lopa.export.tensorrt.engine import engine_from_job, flags_for_bundle, job_from_bundle
        from lopa.export.tensorrt.flags import check_has_products
        from lopa.export.tensorrt.rtx import check_rtx_takes, target_of_rtx
    check_own_bundle(bundle)
    opened = Bundle.open(bundle).with_dialect("standard")
    flags = BuildFlags(
        workspace=None if workspace is None else int(workspace * _GIB),
        weight_streaming=weight_streaming,
        strip_weights=strip_weights,
        version_compatible=version_compatible,
        plugins=plugins,
        products="int8" if int8 else "fp8" if fp8 else "graph",
    )
    if rtx:
        check_rtx_takes(flags, timing_cache=timing_cache is not None)
    flags, trt = flags_for_bundle(opened, flags), (RTX if rtx else TENSORRT).module()
    target = target_of_rtx(trt, capabilities, flags) if rtx else target_of_device(cuda_device(0), trt.__version__)
    check_has_products(flags, target.capabilities, target.gpu)
    plan = bucket_plan_from_file(buckets, opened)
    check_buckets_cover_defaults(plan.buckets, opened.manifest, "the plan")
    job = job_from_bundle(opened, plan.buckets, flags)
    with Progress(quiet=quiet()) as progress:
        made = engine_from_job(
            job, trt, target, timing_cache, lambda phase, done, total: progress(f"TensorRT: {phase}", done, total)
        )
    state = "up to date, nothing was built" if made.cached else _layers(made.no_layers)
    click.echo(f"{made.found.folder}: {_description(made.found.engine)}; {state}")


def _description(engine: TensorRTEngine) -> str:
    size = sum(record.size for record in engine.files)
    verified = f"verified on {', '.join(engine.verified_on)}" if engine.verified_on else "not verified"
    return (
        f"{len(engine.buckets)} buckets and a profile for prompts, {size / 1e6:,.1f} MB, {engine.gpus}, "
        f"{engine.target.built_by}, {verified}"
    )


def _layers(reason: str | None) -> str:
    return f"layers in {LAYERS_NAME}" if reason is None else f"no {LAYERS_NAME}: {reason}"
