"""lopa-export onnx: a checkpoint and its adapter become a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lopa.cli.export_progress import ExportProgress
from lopa.export.extra import export_extra_needed

if TYPE_CHECKING:
    from lopa.export.weight_plan import Dtype

_DTYPES: dict[str, "Dtype"] = {"fp32": "float32", "fp16": "float16"}


@click.command(name="onnx")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="The folder to make."
)
@click.option("--lora", type=click.Path(path_type=Path), metavar="DIR", help="A PEFT LoRA adapter to merge.")
@click.option("--dtype", type=click.Choice(list(_DTYPES)), default="fp32", show_default=True, help="Of the weights.")
@click.option("--with-logits", is_flag=True, help="Add the logits to the outputs, for verification.")
@click.option("--overwrite", is_flag=True, help="Replace BUNDLE if it is a bundle.")
def command(checkpoint: Path, output: Path, lora: Path | None, dtype: str, with_logits: bool, overwrite: bool) -> None:
    """Export CHECKPOINT, a folder in Hugging Face's format, to a bundle."""
    with export_extra_needed("exporting"):
        from lopa.export.bundle_from_checkpoint import bundle_from_checkpoint
    with ExportProgress() as progress:
        bundle = bundle_from_checkpoint(
            checkpoint,
            output,
            lora=lora,
            dtype=_DTYPES[dtype],
            with_logits=with_logits,
            overwrite=overwrite,
            progress=progress,
        )
    size = sum(record.size for record in bundle.manifest.files)
    click.echo(f"{output}: {len(bundle.manifest.tensors)} tensors, {size / 1e6:,.1f} MB, {bundle.manifest.dtype}")
