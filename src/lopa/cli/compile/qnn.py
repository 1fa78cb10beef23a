"""lopa-export qnn: compiles an engine for Qualcomm NPUs, with one context binary per shape bucket."""

from pathlib import Path

import click

from lopa.cli.options.devices import buckets_option
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.export.extra import export_extra_needed
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import bucket_plan_from_file
from lopa.runtime.hub.hub_bundle import check_own_bundle
from lopa.runtime.qnn.qnn_manifest import SOCS, soc_from_option


@click.command(name="qnn", cls=GroupedCommand, examples=("lopa-export qnn BUNDLE --soc SM8650",))
@click.argument("bundle", type=click.Path(path_type=Path))
@option(
    "--soc",
    required=True,
    metavar="SOC",
    help=f"Chip: {', '.join(SOCS)}, or QNN's numbers SOC_MODEL:HTP_ARCH, e.g. 57:75.",
)
@buckets_option
def command(bundle: Path, soc: str, buckets: Path | None) -> None:
    """Compile the standard graph of BUNDLE for its shape buckets, with QNN.

    The engine is written to BUNDLE/engines. The NPU computes in float16, with rotary angles from the host. A build with
    nodes that stay on the CPU fails. An up-to-date engine is kept.
    """
    target = soc_from_option(soc)
    with export_extra_needed("reading ONNX graphs"):
        from lopa.export.qnn.build import check_bundle, engine_from_bundle
    check_own_bundle(bundle)
    opened = Bundle.open(bundle).with_dialect("standard")
    check_bundle(opened)  # before a plan is needed
    made = engine_from_bundle(opened, target, bucket_plan_from_file(buckets, opened).buckets, _report)
    engine = made.found.engine
    size = sum(record.size for record in engine.files)
    state = "up to date, nothing was compiled" if made.cached else f"{engine.soc}, QNN {engine.sdk_version}"
    click.echo(f"{made.found.folder}: {len(engine.buckets)} buckets, {size / 1e6:,.1f} MB, {state}")


def _report(name: str) -> None:
    if not quiet():
        click.echo(f"QNN compiles {name}", err=True)
