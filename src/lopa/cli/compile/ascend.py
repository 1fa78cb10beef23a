"""lopa-export ascend: compiles an engine for Ascend NPUs with CANN's ATC, or writes the files for another machine."""

from pathlib import Path

import click

from lopa.bench.progress import Progress
from lopa.cli.options.devices import buckets_option
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.export.extra import export_extra_needed
from lopa.runtime.ascend.ascend_manifest import Precision, engine_folder
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import bucket_plan_from_file
from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_bundle import check_own_bundle

_PATH = click.Path(path_type=Path)
_PRECISIONS: tuple[Precision, ...] = ("origin", "fp16", "bf16")


@click.command(
    name="ascend",
    cls=GroupedCommand,
    examples=(
        "lopa-export ascend BUNDLE --soc-version Ascend910B1",
        "lopa-export ascend BUNDLE --soc-version Ascend910B1 --precision fp16 --dry-run -o BUILD",
    ),
)
@click.argument("bundle", type=_PATH)
@option("--soc-version", required=True, metavar="SOC", help="Chip, e.g. Ascend910B1 or Ascend910_9392.")
@buckets_option
@option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    show_default="origin; with --int8 fp16",
    help="Precision: origin keeps the graph's types; fp16 and bf16 let ATC lower part of float32.",
)
@option("--int8", is_flag=True, help="Compile a graph quantized by AMCT, with one OM of fixed shape per bucket.")
@option("--int8-graph", type=_PATH, metavar="FILE", help="Quantized graph for --int8, made from the portable graph.")
@option("--dry-run", is_flag=True, help="Write commands and files for a machine with ATC, and run nothing.")
@option(
    "-o", "--output", type=_PATH, metavar="DIR", show_default="ascend-SOC-build", help="Folder written by --dry-run."
)
@option(
    "--built",
    type=_PATH,
    metavar="DIR",
    help="Folder with the results of the commands written by --dry-run. The engine in it is installed.",
)
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
    """Compile the portable graph of BUNDLE for its shape buckets, with Ascend's ATC.

    The engine is written to BUNDLE/engines. Operators and shapes that ATC is known to reject are reported before ATC
    runs. An up-to-date engine is kept.
    """
    if int8_graph is not None and not int8:
        raise click.UsageError("--int8-graph needs --int8")
    if output is not None and not dry_run:
        raise click.UsageError("-o needs --dry-run")
    if built is not None and dry_run:
        raise click.UsageError("--built and --dry-run: choose one")
    with export_extra_needed("reading ONNX graphs"):
        from lopa.export.ascend.build import engine_from_build_folder, engine_from_job
        from lopa.export.ascend.build_folder import build_folder_from_job
        from lopa.export.ascend.job import AscendRequest, check_float, job_from_bundle
    check_own_bundle(bundle)
    opened = Bundle.open(bundle)
    check_float(opened)  # before a plan is needed
    request = AscendRequest(soc_version, bucket_plan_from_file(buckets, opened).buckets, precision, int8, int8_graph)
    job = job_from_bundle(opened, request)
    if dry_run:
        target = Path(f"{engine_folder(opened, job.soc_version).name}-build") if output is None else output
        build_folder_from_job(job, target)
        click.echo(
            f"{target}: {len(job.calls)} commands for {len(job.buckets)} buckets; README.txt describes how to run them"
        )
        return
    if int8 and int8_graph is None:
        raise BadInputError(
            "--int8 without a quantized graph",
            expected="--int8-graph FILE: the deploy graph that AMCT (amct_onnx of Ascend's CANN) makes from the "
            "portable graph. ATC does not quantize, and it lacks the operators of lopa-export's int8 bundles",
            remedy=f"quantize {job.graph} with AMCT; --dry-run writes a build folder with instructions",
        )
    if built is not None:
        made = engine_from_build_folder(opened, job, built)
    else:
        with Progress(quiet=quiet()) as progress:
            made = engine_from_job(
                opened, job, lambda stage: progress(f"atc compiles {stage}; this takes minutes", 0, 0)
            )
    engine = made.found.engine
    models = sorted({bucket.model for bucket in engine.buckets})
    size = sum(record.size for record in engine.files)
    state = "up to date, nothing was run" if made.cached else f"{engine.soc_version}, {engine.precision}"
    click.echo(f"{made.found.folder}: {len(engine.buckets)} buckets, {len(models)} OM, {size / 1e6:,.1f} MB, {state}")
