"""lopa-export onnx: a checkpoint and its adapter become a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lopa.bench.pace import bytes_text, duration_text
from lopa.cli.options.config import defaults_from_texts, defaults_option
from lopa.cli.shown.stages import ShownStages
from lopa.export.bundle_plan import BundleChoices, plan_from_checkpoint
from lopa.export.extra import export_extra_needed
from lopa.export.families import FAMILIES
from lopa.export.weights.quantization import QuantizationChoice

if TYPE_CHECKING:
    from lopa.export.weights.plan import Dtype, IntegerDtype
    from lopa.runtime.bundle.manifest import Dialect

_DTYPES: dict[str, "Dtype"] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}

_INTEGERS: dict[str, "IntegerDtype | None"] = {"none": None, "int8": "int8", "int4": "int4"}

_DIALECTS: dict[str, tuple["Dialect", ...]] = {
    "standard": ("standard",),
    "portable": ("portable",),
    "both": ("standard", "portable"),
}


@click.command(name="onnx")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="The folder to make."
)
@click.option("--lora", type=click.Path(path_type=Path), metavar="DIR", help="A PEFT LoRA adapter to merge.")
@click.option(
    "--family",
    type=click.Choice(list(FAMILIES)),
    help="What an autoregressive-looking checkpoint was trained as [default: what its config.json says].",
)
@click.option(
    "--dtype",
    type=click.Choice(list(_DTYPES)),
    default="fp32",
    show_default=True,
    help="Of the weights that stay floats.",
)
@click.option(
    "--quantize",
    "kind",
    type=click.Choice(list(_INTEGERS)),
    default="none",
    show_default=True,
    help="Matrices as integers: int8 with int8 products, or int4 in blocks of 32 for the least memory.",
)
@click.option(
    "--quantize-exclude",
    "exclude",
    multiple=True,
    metavar="PATTERN",
    help="Leave the tensors of these names as they are, e.g. 'layers.*.mlp.down.weight'. Repeatable.",
)
@click.option(
    "--quantize-head/--no-quantize-head",
    "head",
    default=None,
    help="Whether the product with the vocabulary is quantized too [default: yes].",
)
@click.option(
    "--dialect",
    type=click.Choice(list(_DIALECTS)),
    default="standard",
    show_default=True,
    help="Of the graph: standard for ONNX Runtime, portable (opset 17, plain operators) for Ascend and old compilers.",
)
@click.option("--with-logits", is_flag=True, help="Add the logits to the outputs, for verification.")
@click.option(
    "--stages",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Above 1: also the graphs of a pipeline of N stages, over the same weights.",
)
@click.option(
    "--plugins",
    is_flag=True,
    help="Branch attention and confidence head as functions, which an engine may replace by its own kernels.",
)
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A Jinja chat template, in place of the checkpoint's own.",
)
@defaults_option("Default of a decoding option for this bundle, e.g. branches=4. Repeatable.")
@click.option("--overwrite", is_flag=True, help="Replace BUNDLE if it is a bundle.")
def command(
    checkpoint: Path,
    output: Path,
    lora: Path | None,
    family: str | None,
    dtype: str,
    kind: str,
    exclude: tuple[str, ...],
    head: bool | None,
    dialect: str,
    with_logits: bool,
    stages: int,
    plugins: bool,
    chat_template: Path | None,
    defaults: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Export CHECKPOINT, a folder in Hugging Face's format, to a bundle.

    Nothing is downloaded: "hf download NAME --local-dir CHECKPOINT" fetches one from the hub.
    """
    if kind == "none" and (exclude or head is not None):
        raise click.UsageError("--quantize-exclude and --quantize-head go with --quantize int8 or int4")
    integers = _INTEGERS[kind]
    choices = BundleChoices(
        dtype=_DTYPES[dtype],
        quantization=None if integers is None else QuantizationChoice(integers, head is not False, exclude),
        dialects=_DIALECTS[dialect],
        with_logits=with_logits,
        stages=stages,
        plugins=plugins,
        defaults=defaults_from_texts(defaults),
        chat_template=chat_template,
    )
    with ShownStages(bytes_text) as progress:
        progress("reading the checkpoint", 0, 0)
        plan = plan_from_checkpoint(checkpoint, output, choices, lora=lora, family=family, overwrite=overwrite)
        progress("loading torch", 0, 0)
        with export_extra_needed("exporting"):
            from lopa.export.bundle_from_checkpoint import bundle_from_plan
        bundle = bundle_from_plan(plan, progress)
    size = sum(record.size for record in bundle.manifest.files)
    kinds = bundle.manifest.dtype if integers is None else f"{bundle.manifest.dtype} and {integers}"
    tensors = len(bundle.manifest.tensors)
    click.echo(f"{output}: {tensors} tensors, {bytes_text(size)}, {kinds}, in {duration_text(progress.seconds)}")
