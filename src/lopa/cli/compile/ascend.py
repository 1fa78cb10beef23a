"""lopa-export ascend: an engine for Ascend NPUs, compiled by CANN's ATC, or what it takes to compile it elsewhere."""

from pathlib import Path

import click

from lopa.cli.compile.build_progress import AtcProgress
from lopa.cli.options.plan import bucket_plan_from_option
from lopa.export.extra import export_extra_needed
from lopa.runtime.ascend.manifest import Precision, engine_folder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_NAME
from lopa.runtime.errors import BadInputError

_PATH = click.Path(path_type=Path)
_PRECISIONS: tuple[Precision, ...] = ("origin", "fp16", "bf16")


@click.command(name="ascend")
@click.argument("bundle", type=_PATH)
@click.option("--soc-version", required=True, metavar="SOC", help="The chip, e.g. Ascend910B1 or Ascend910_9392.")
@click.option(
    "--buckets", type=_PATH, metavar="FILE", help=f"A plan by lopa-export plan [default: BUNDLE/{BUCKETS_NAME}]."
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    help="The graph's own types, or float32 partly lowered to fp16 or bf16 by ATC [default: origin; with --int8 fp16].",
)
@click.option("--int8", is_flag=True, help="Compile a graph that AMCT has quantized: one OM of fixed shape per bucket.")
@click.option("--int8-graph", type=_PATH, metavar="FILE", help="That graph, made from BUNDLE's portable one.")
@click.option("--dry-run", is_flag=True, help="Write commands and files for a machine with ATC; run nothing.")
@click.option("-o", "--output", type=_PATH, metavar="DIR", help="Where --dry-run writes [default: ascend-SOC-build].")
@click.option("--built", type=_PATH, metavar="DIR", help="Take what the commands of --dry-run have made in DIR.")
def command(
    bundle: Path,
    soc_version: str,
    buckets: Path | None,
    precision: Precision | None,
    int8: bool,
    int8_graph: Path | None,
    dry_run: bool,
    output: Path | None,
    built: Path | None,
) -> None:
    """Compile the portable graph of BUNDLE for the buckets (input shapes) of a plan, with Ascend's ATC.

    The engine goes into BUNDLE/engines. Whatever ATC is known to refuse is said before it is called. An engine that is
    there and would come out the same is left as it is.
    """
    if int8_graph is not None and not int8:
        raise click.UsageError("--int8-graph goes with --int8")
    if output is not None and not dry_run:
        raise click.UsageError("-o goes with --dry-run")
    if built is not None and dry_run:
        raise click.UsageError("--built and --dry-run: choose one")
    with export_extra_needed("reading ONNX graphs"):
        from lopa.export.ascend.build import engine_from_build_folder, engine_from_job
        from lopa.export.ascend.build_folder import build_folder_from_job
        from lopa.export.ascend.job import AscendRequest, job_from_bundle
    opened = Bundle.open(bundle)
    request = AscendRequest(soc_version, bucket_plan_from_option(opened, buckets).buckets, precision, int8, int8_graph)
    job = job_from_bundle(opened, request)
    if dry_run:
        target = Path(f"{engine_folder(opened, job.soc_version).name}-build") if output is None else output
        build_folder_from_job(job, target)
        click.echo(
            f"{target}: {len(job.calls)} commands for {len(job.buckets)} buckets; README.txt says how to run them"
        )
        return
    if int8 and int8_graph is None:
        raise BadInputError(
            "--int8 without a quantized graph",
            expected="--int8-graph FILE: the deploy graph that AMCT (amct_onnx, of Ascend's CANN) made of the bundle's "
            "portable graph; ATC quantizes nothing, and int8 bundles of lopa-export are not in its operators",
            remedy=f"quantize {job.graph} with AMCT, or write a build folder that says how with --dry-run",
        )
    if built is not None:
        made = engine_from_build_folder(opened, job, built)
    else:
        with AtcProgress() as progress:
            made = engine_from_job(opened, job, progress)
    engine = made.found.engine
    models = sorted({bucket.model for bucket in engine.buckets})
    size = sum(record.size for record in engine.files)
    state = "unchanged, nothing was run" if made.cached else f"{engine.soc_version}, {engine.precision}"
    click.echo(f"{made.found.folder}: {len(engine.buckets)} buckets, {len(models)} OM, {size / 1e6:,.1f} MB, {state}")
