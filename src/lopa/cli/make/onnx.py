"""lopa-export onnx: exports a checkpoint and its adapter to a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lopa.bench.progress import Progress, bytes_text, duration_text
from lopa.cli.make.hub_sources import local_sources
from lopa.cli.options.decoding_options import defaults_from_texts, defaults_option
from lopa.cli.program.grouped_command import GroupedCommand, option
from lopa.cli.program.verbosity import quiet
from lopa.export.bundle_plan import BundleChoices, plan_from_checkpoint
from lopa.export.extra import export_extra_needed
from lopa.export.families import FAMILIES
from lopa.export.weights.quantization import QuantizationChoice
from lopa.runtime.errors import BadInputError

if TYPE_CHECKING:
    from lopa.export.weights.plan import Dtype, QuantizedKind
    from lopa.runtime.bundle.manifest import Dialect

_SHORT: dict[str, "Dtype"] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class _DtypeChoice(click.Choice["Dtype"]):
    """A type of weights. The short names that other exporters use are taken too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "Dtype":
        return super().convert(_SHORT.get(value, value), param, ctx)


_KINDS: dict[str, "QuantizedKind | None"] = {"none": None, "int8": "int8", "int4": "int4", "fp8": "fp8"}

_DIALECTS: dict[str, tuple["Dialect", ...]] = {
    "standard": ("standard",),
    "portable": ("portable",),
    "both": ("standard", "portable"),
}


@click.command(
    name="onnx",
    cls=GroupedCommand,
    examples=(
        "lopa-export onnx CHECKPOINT --lora ADAPTER -o BUNDLE --overwrite",
        "lopa-export onnx CHECKPOINT --lora ADAPTER -o BUNDLE-INT8 --quantize int8 --default branches=4",
    ),
)
@click.argument("checkpoint", type=click.Path(path_type=Path))
@option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="Folder to create.")
@option("--overwrite", is_flag=True, help="Replace the folder if it is a bundle.")
@option(
    "--lora",
    type=click.Path(path_type=Path),
    metavar="ADAPTER",
    help="PEFT LoRA adapter to merge into the weights: a folder, or ORG/NAME on the Hub.",
)
@option("--revision", metavar="NAME", show_default="main", help="Branch, tag or commit of a CHECKPOINT on the Hub.")
@option(
    "--locked",
    is_flag=True,
    advanced=True,
    help="Use only commits of the Hub: those that the bundle at --output records, or given in full.",
)
@option(
    "--family",
    type=click.Choice(list(FAMILIES)),
    show_default="from config.json",
    help="Family of the model. Required if config.json names an autoregressive family.",
)
@option(
    "--dtype",
    type=_DtypeChoice(list(_SHORT.values())),
    default="float32",
    help="Type of the weights that are not quantized.",
)
@option(
    "--quantize",
    "kind",
    type=click.Choice(list(_KINDS)),
    default="none",
    help="Quantize matrices: int8 computes integer products; int4, in blocks of 32, needs the least memory; fp8 is "
    "for NVIDIA GPUs, fastest from compute capability 8.9.",
)
@option(
    "--quantize-exclude",
    "exclude",
    multiple=True,
    metavar="PATTERN",
    help="Tensors to leave unquantized, e.g. 'layers.*.mlp.down.weight'. Repeatable.",
)
@option(
    "--quantize-head/--no-quantize-head",
    "head",
    default=None,
    show_default="quantize-head; with fp8 no-quantize-head",
    help="Quantize the output head, which projects to the vocabulary.",
)
@option(
    "--calibrate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='JSON lines with "prompt" and "answer": round int4 or fp8 so that errors on these texts cancel (GPTQ).',
)
@option(
    "--dialect",
    type=click.Choice(list(_DIALECTS)),
    default="standard",
    help="Graph dialect: standard for ONNX Runtime, portable (plain operators) for WebGPU, Ascend and old compilers.",
)
@option(
    "--rotary-inputs/--no-rotary-inputs",
    "rotary_inputs",
    default=None,
    show_default="for portable graphs",
    help="Take cosines and sines of rotary angles as inputs, which float16 hardware would compute inexactly.",
)
@option("--with-logits", is_flag=True, help="Add the logits to the outputs: top-k above 8, penalties, verification.")
@option("--stages", type=click.IntRange(min=1), default=1, help="Number of pipeline stages to write graphs for.")
@option(
    "--plugins",
    is_flag=True,
    advanced=True,
    help="Write the token statistics as a function that an engine can replace by its own kernels.",
)
@option(
    "--chat-template",
    type=click.Path(path_type=Path),
    metavar="FILE",
    show_default="the checkpoint's own",
    help="File with a Jinja chat template.",
)
@defaults_option("Default of a decoding option for this bundle, e.g. branches=4. Repeatable.")
def command(
    checkpoint: Path,
    output: Path,
    lora: Path | None,
    revision: str | None,
    locked: bool,
    family: str | None,
    dtype: "Dtype",
    kind: str,
    exclude: tuple[str, ...],
    head: bool | None,
    calibrate: Path | None,
    dialect: str,
    rotary_inputs: bool | None,
    with_logits: bool,
    stages: int,
    plugins: bool,
    chat_template: Path | None,
    defaults: tuple[str, ...],
    overwrite: bool,
) -> None:
    """Export CHECKPOINT to a bundle: a folder in Hugging Face's format, or ORG/NAME on the Hugging Face Hub.

    An existing folder is used as it is. From the Hub, weights in safetensors, configuration and tokenizer are
    downloaded into its cache, never pickles or code. The bundle records their commit. ORG/NAME@REVISION names a branch,
    tag or commit.
    """
    if kind == "none" and (exclude or head is not None or calibrate is not None):
        given = {"--quantize-exclude": exclude, "--[no-]quantize-head": head is not None, "--calibrate": calibrate}
        raise BadInputError(
            f"{', '.join(name for name, value in given.items() if value)} without --quantize",
            expected="--quantize int8, int4 or fp8",
            remedy="add --quantize, or drop these options",
        )
    quantized = _KINDS[kind]
    sources = local_sources(checkpoint, lora, output, revision=revision, locked=locked)
    choices = BundleChoices(
        dtype=dtype,
        quantization=None if quantized is None else QuantizationChoice(quantized, head, exclude, calibrate),
        dialects=_DIALECTS[dialect],
        rotary_inputs=rotary_inputs,
        with_logits=with_logits,
        stages=stages,
        plugins=plugins,
        defaults=defaults_from_texts(defaults),
        chat_template=chat_template,
        checkpoint_hub=sources.checkpoint_hub,
        adapter_hub=sources.adapter_hub,
    )
    with Progress(bytes_text, quiet=quiet()) as progress:
        progress("reading the checkpoint", 0, 0)
        plan = plan_from_checkpoint(
            sources.checkpoint, output, choices, lora=sources.lora, family=family, overwrite=overwrite
        )
        progress("loading torch", 0, 0)
        with export_extra_needed("exporting"):
            from lopa.export.bundle_from_checkpoint import bundle_from_plan
        bundle = bundle_from_plan(plan, progress)
    warnings = list(plan.source.warnings)
    if bundle.manifest.dtype == "bfloat16":
        usable = bundle.manifest.bfloat16_devices
        warnings.append(f"ONNX Runtime has no bfloat16 operators on CPUs: use --device {usable}")
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    size = sum(record.size for record in bundle.manifest.files)
    kinds = bundle.manifest.dtype if quantized is None else f"{bundle.manifest.dtype} and {quantized}"
    tensors = len(bundle.manifest.tensors)
    click.echo(f"{output}: {tensors} tensors, {bytes_text(size)}, {kinds}, in {duration_text(progress.seconds)}")
