"""lopa-export tensorrt: an engine for the buckets of a plan, by TensorRT for this machine's NVIDIA GPU, or by TensorRT
for RTX for many GPUs on any machine.
"""

from pathlib import Path

import click

from lopa.cli.compile.build_progress import TensorRTProgress
from lopa.cli.options.plan import bucket_plan_from_option
from lopa.export.extra import export_extra_needed
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.tensorrt.library import RTX, TENSORRT
from lopa.runtime.tensorrt.manifest import LAYERS_NAME, BuildFlags, TensorRTEngine, target_of_device

_PATH = click.Path(path_type=Path)
_GIB = 2**30


@click.command(name="tensorrt")
@click.argument("bundle", type=_PATH)
@click.option(
    "--buckets", type=_PATH, metavar="FILE", help=f"A plan by lopa-export plan [default: BUNDLE/{BUCKETS_NAME}]."
)
@click.option(
    "--workspace",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GIB",
    help="Memory that a kernel may use for its own work [default: all of the GPU's].",
)
@click.option(
    "--timing-cache",
    type=_PATH,
    metavar="FILE",
    help="Read if it exists, and written: what was timed is not timed again [default: one in BUNDLE/engines].",
)
@click.option(
    "--weight-streaming", is_flag=True, help="Weights may stay in the host's memory, for a GPU that is small."
)
@click.option("--strip-weights", is_flag=True, help="Leave the weights out of the plan; they come from BUNDLE again.")
@click.option("--version-compatible", is_flag=True, help="Let later versions of TensorRT run it, more slowly.")
@click.option("--plugins", is_flag=True, help="Use the kernels of lopa.plugins; BUNDLE was exported with --plugins.")
@click.option("--int8", is_flag=True, help="Products with weights in int8; BUNDLE is in floats.")
@click.option("--fp8", is_flag=True, help="Products with weights in fp8; BUNDLE is in floats.")
@click.option("--rtx", is_flag=True, help="Build with TensorRT for RTX, for many GPUs; no GPU is needed here.")
@click.option(
    "--compute-capability",
    "capabilities",
    multiple=True,
    metavar="N.N",
    help="With --rtx: what to build for, e.g. 8.9; may be given more than once [default: 8.0 and later].",
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
    """Build the standard graph of BUNDLE for the buckets (input shapes) of a plan, for the first CUDA device.

    With --rtx for all RTX GPUs of some compute capabilities, on a machine with or without one: their kernels are made
    where the engine is opened.

    The engine goes into BUNDLE/engines. Whatever TensorRT's parser is known to refuse is said before it is called. An
    engine that is there and would come out the same is left as it is.
    """
    if int8 and fp8:
        raise click.UsageError("--int8 and --fp8: choose one")
    if capabilities and not rtx:
        raise click.UsageError("--compute-capability is for --rtx: TensorRT builds for the GPU of this machine")
    with export_extra_needed("reading ONNX graphs"):
        from lopa.export.tensorrt.bucket_coverage import check_buckets_cover_defaults
        from lopa.export.tensorrt.engine import engine_from_job, job_from_bundle
        from lopa.export.tensorrt.rtx import check_rtx_takes, target_of_rtx
    opened = Bundle.open(bundle).of_dialect("standard")
    plan = bucket_plan_from_option(opened, buckets)
    check_buckets_cover_defaults(plan.buckets, opened.manifest, "the plan")
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
    job = job_from_bundle(opened, plan.buckets, flags)
    trt = (RTX if rtx else TENSORRT).module()
    target = target_of_rtx(trt, capabilities, flags) if rtx else target_of_device(cuda_device(0), trt.__version__)
    with TensorRTProgress() as progress:
        made = engine_from_job(job, trt, target, timing_cache, progress)
    state = "unchanged, nothing was built" if made.cached else _layers(made.no_layers)
    click.echo(f"{made.found.folder}: {_words(made.found.engine)}; {state}")


def _words(engine: TensorRTEngine) -> str:
    size = sum(record.size for record in engine.files)
    verified = f"verified on {', '.join(engine.verified_on)}" if engine.verified_on else "not verified"
    return (
        f"{len(engine.buckets)} buckets and a range for prompts, {size / 1e6:,.1f} MB, {engine.gpus}, "
        f"{engine.target.built_by}, {verified}"
    )


def _layers(reason: str | None) -> str:
    return f"layers in {LAYERS_NAME}" if reason is None else f"no {LAYERS_NAME}: {reason}"
