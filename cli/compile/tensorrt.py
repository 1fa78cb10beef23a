"""lopa-export tensorrt: an engine for this machine's NVIDIA GPU, built by TensorRT for the gears of a plan."""

from pathlib import Path

import click

from lopa.cli.compile.build_progress import TensorRTProgress
from lopa.cli.options.plan import gear_plan_from_option
from lopa.export.extra import export_extra_needed
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import GEARS_NAME
from lopa.runtime.cuda.driver import cuda_device
from lopa.runtime.tensorrt.library import tensorrt_library
from lopa.runtime.tensorrt.manifest import LAYERS_NAME, BuildFlags

_PATH = click.Path(path_type=Path)
_GIB = 2**30


@click.command(name="tensorrt")
@click.argument("bundle", type=_PATH)
@click.option("--gears", type=_PATH, metavar="FILE", help=f"A plan by lopa-export plan [default: BUNDLE/{GEARS_NAME}].")
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
def command(
    bundle: Path,
    gears: Path | None,
    workspace: float | None,
    timing_cache: Path | None,
    weight_streaming: bool,
    strip_weights: bool,
    version_compatible: bool,
    plugins: bool,
    int8: bool,
    fp8: bool,
) -> None:
    """Build the standard graph of BUNDLE for the gears (input shapes) of a plan, for the first CUDA device.

    The engine goes into BUNDLE/engines. Whatever TensorRT's parser is known to refuse is said before it is called. An
    engine that is there and would come out the same is left as it is.
    """
    if int8 and fp8:
        raise click.UsageError("--int8 and --fp8: choose one")
    with export_extra_needed("reading ONNX graphs"):
        from lopa.export.tensorrt.engine import engine_from_job, job_from_bundle
        from lopa.export.tensorrt.gear_coverage import check_gears_cover_defaults
    opened = Bundle.open(bundle).of_dialect("standard")
    plan = gear_plan_from_option(opened, gears)
    check_gears_cover_defaults(plan.gears, opened.manifest, "the plan")
    flags = BuildFlags(
        workspace=None if workspace is None else int(workspace * _GIB),
        weight_streaming=weight_streaming,
        strip_weights=strip_weights,
        version_compatible=version_compatible,
        plugins=plugins,
        products="int8" if int8 else "fp8" if fp8 else "graph",
    )
    job = job_from_bundle(opened, plan.gears, flags)
    trt, device = tensorrt_library(), cuda_device(0)
    with TensorRTProgress() as progress:
        made = engine_from_job(job, trt, device, timing_cache, progress)
    engine = made.found.engine
    size = sum(record.size for record in engine.files)
    state = "unchanged, nothing was built" if made.cached else f"layers in {LAYERS_NAME}"
    verified = "verified" if engine.verified else "not verified"
    click.echo(
        f"{made.found.folder}: {len(engine.gears)} gears and a range for prompts, {size / 1e6:,.1f} MB, "
        f"{engine.gpu}, TensorRT {engine.tensorrt}, {verified}; {state}"
    )
