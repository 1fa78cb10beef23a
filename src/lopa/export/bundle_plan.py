"""Plan of a bundle: its source, tensors and graphs, checked before any weight is read.

The module imports neither torch nor ONNX, so that errors in a checkpoint or in the options are reported at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lopa.export.families.family import D2F
from lopa.export.source import ExportSource, source_from_checkpoint
from lopa.export.staging import check_destination
from lopa.export.weights.plan import Dtype, WeightPlan, tensor_records_from_plan
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.export.weights.stage_split import parts_from_records
from lopa.runtime.bundle.manifest import DecodingDefaults, Dialect, HubSource, ModelDimensions, TensorRecord
from lopa.runtime.bundle.manifest_checks import check_default_options
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import checked_defaults

GRAPH_NAMES: dict[Dialect, str] = {"standard": "model.onnx", "portable": "portable.onnx"}


@dataclass(frozen=True, kw_only=True)
class BundleChoices:
    """Options of an export."""

    dtype: Dtype = "float32"
    """Type of the tensors that `quantization` leaves in floating point."""
    quantization: QuantizationChoice | None = None
    dialects: Sequence[Dialect] = ("standard",)
    """Standard, portable, or both in this order. Each has its own graph, and all share one weights file."""
    rotary_inputs: bool | None = None
    """True if graphs take cosines and sines of rotary angles in place of positions, None for portable graphs only."""
    with_logits: bool = False
    """True to add the logits as an output, for verification."""
    stages: int = 1
    """Number of pipeline stages. Above 1, the bundle also has one standard graph per stage, over the same weights."""
    plugins: bool = False
    """True to use the functions of domain `lopa` in the standard graphs (docs/how-to/engines.md)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Decoding options by name. They override the options that the checkpoint was trained for."""
    chat_template: Path | None = None
    """File with a template that replaces the checkpoint's own."""
    checkpoint_hub: HubSource | None = None
    """Source of a downloaded checkpoint, for the manifest."""
    adapter_hub: HubSource | None = None

    @property
    def rotary_dialects(self) -> list[Dialect]:
        """Dialects whose graphs take cosines and sines."""
        if self.rotary_inputs is None:
            return [dialect for dialect in self.dialects if dialect == "portable"]
        return list(self.dialects) if self.rotary_inputs else []


@dataclass(frozen=True)
class PlannedGraph:
    """One graph file of the bundle."""

    name: str
    dialect: Dialect
    part: ModelPart

    @property
    def is_stage(self) -> bool:
        """True for a graph with part of the layers."""
        return not (self.part.is_first and self.part.is_last)


@dataclass(frozen=True)
class BundlePlan:
    """A bundle before it is written."""

    destination: Path
    overwrite: bool
    choices: BundleChoices
    source: ExportSource
    weights: WeightPlan
    """All tensors, with the quantization of `choices` applied."""
    records: dict[str, TensorRecord]
    graphs: Sequence[PlannedGraph]
    """Graphs of the whole model, first dialect first, then graphs of stages. A single stage has no separate graph."""
    decoding: DecodingDefaults
    """Decoding options that the checkpoint was trained for."""

    @property
    def weights_size(self) -> int:
        """Bytes of the weights file."""
        return max(record.offset + record.length for record in self.records.values())


def plan_from_checkpoint(
    checkpoint: Path,
    destination: Path,
    choices: BundleChoices,
    *,
    lora: Path | None = None,
    family: str | None = None,
    overwrite: bool = False,
) -> BundlePlan:
    """Return the plan of the bundle `destination` for the folder `checkpoint` and the adapter folder `lora`.

    `family` is for a checkpoint that does not name its family. Raises BadInputError for errors in the source, the
    destination or the combination of options. It reads config.json, file names and the headers of weights.
    """
    _check(choices)
    check_destination(destination, overwrite=overwrite)
    source = source_from_checkpoint(checkpoint, lora, family, choices.chat_template)
    weights = source.planned if choices.quantization is None else quantized_plan(source.planned, choices.quantization)
    _check_packed(choices, source)
    if source.config.dimensions.canvas is not None:
        choices = _choices_for_canvas(choices, source)
    records = tensor_records_from_plan(weights, choices.dtype)
    _check_portable_experts(choices, records)
    graphs = _graphs(choices, records, source.config.dimensions)
    decoding = _decoding(source)
    choices = replace(choices, defaults=checked_defaults({**source.config.defaults, **choices.defaults}))
    check_default_options(
        choices.defaults,
        decoding,
        source.config.dimensions,
        with_logits=choices.with_logits,
        prediction_shift=source.config.architecture.prediction_shift,
    )
    return BundlePlan(destination, overwrite, choices, source, weights, records, graphs, decoding)


def _check_packed(choices: BundleChoices, source: ExportSource) -> None:
    if source.config.packed is not None and choices.quantization is not None and choices.quantization.calibrate:
        raise BadInputError(
            f"--calibrate for {source.checkpoint}, whose matrices are quantized already",
            expected="the original checkpoint",
            remedy="drop --calibrate, which keeps the checkpoint's own integers, or export the original",
        )


def _choices_for_canvas(choices: BundleChoices, source: ExportSource) -> BundleChoices:
    """Return `choices` with positions in all graphs. Raise BadInputError for forms that contract 2 does not have."""
    for given, option in (
        (choices.stages > 1, f"--stages {choices.stages}"),
        (choices.plugins, "--plugins"),
        (bool(choices.rotary_inputs), "--rotary-inputs"),
        (choices.quantization is not None and choices.quantization.kind == "fp8", "--quantize fp8"),
    ):
        if given:
            raise BadInputError(
                f"{option} for {source.checkpoint}, a model with canvases",
                expected="graphs of all layers with positions, in floating point, int8 or int4",
                remedy=f"drop {option}",
            )
    return replace(choices, rotary_inputs=False)


def stage_name(number: int, stages: int) -> str:
    """Return the file name of a stage's graph.

    It is in the folder of the weights, because ONNX forbids `..` in paths.
    """
    return f"model.stage-{number}-of-{stages}.onnx"


def _check(choices: BundleChoices) -> None:
    if tuple(choices.dialects) not in (("standard",), ("portable",), ("standard", "portable")):
        raise ValueError(f"received dialects {choices.dialects}, expected standard, portable, or both in this order")
    if "portable" in choices.dialects and choices.quantization is not None and choices.quantization.kind == "fp8":
        raise BadInputError(
            "--quantize fp8 with the portable dialect",
            expected="int8 or int4: FP8 is for NVIDIA GPUs, which read the standard dialect",
            remedy="export with --dialect standard, or with --quantize int8",
        )
    if "portable" in choices.dialects and choices.quantization is not None and choices.dtype == "bfloat16":
        raise BadInputError(
            f"--quantize {choices.quantization.kind} and --dtype bfloat16 with the portable dialect",
            expected="fp32 or fp16: quantized portable graphs are for WebGPU, which has no bfloat16",
            remedy="drop --quantize, export with --dtype float16, or export with --dialect standard",
        )
    if choices.stages > 1 and "standard" not in choices.dialects:
        raise BadInputError(
            f"--stages {choices.stages} with the portable dialect only",
            expected="stages in the standard dialect: a portable graph cannot be split",
            remedy="drop --stages, or export with --dialect both",
        )
    if choices.plugins and "standard" not in choices.dialects:
        raise BadInputError(
            "--plugins with the portable dialect only",
            expected="plugins in the standard dialect: a portable graph has plain operators only",
            remedy="drop --plugins, or export with --dialect both",
        )


def _check_portable_experts(choices: BundleChoices, records: Mapping[str, TensorRecord]) -> None:
    """Raise BadInputError for quantized experts in the portable dialect, which computes every expert for every row."""
    stacked = [name for name, each in records.items() if each.is_quantized and len(each.shape) > 2]
    if "portable" in choices.dialects and choices.quantization is not None and stacked:
        raise BadInputError(
            f"--quantize {choices.quantization.kind} with the portable dialect, for a model with experts",
            expected="experts in floating point: the portable dialect has no quantized experts",
            remedy="add --quantize-exclude '*.experts.*', drop --quantize, or export with --dialect standard",
        )


def _graphs(choices: BundleChoices, records: dict[str, TensorRecord], sizes: ModelDimensions) -> list[PlannedGraph]:
    """Return the graphs of the whole model, first dialect first, then the graphs of stages if there are several."""
    whole = [PlannedGraph(GRAPH_NAMES[dialect], dialect, sizes.whole_model) for dialect in choices.dialects]
    parts = parts_from_records(records, sizes.layers, choices.stages)
    stages = [PlannedGraph(stage_name(number, len(parts)), "standard", part) for number, part in enumerate(parts)]
    return whole + (stages if len(stages) > 1 else [])


def _decoding(source: ExportSource) -> DecodingDefaults:
    """Return the family's defaults with or without an adapter. A block size in config.json takes precedence, and a
    checkpoint with an expand token has DreamOn's strategy."""
    config, tokens = source.config, source.tokenizer.special_tokens
    with_adapter = config.family.decoding_with_adapter if source.lora is not None else None
    options = {**D2F, **(config.family.decoding if with_adapter is None else with_adapter)}
    if tokens.expand is not None:
        options["strategy"] = "vanilla"  # DreamOn's loop unmasks one position per step
    if config.block_size is not None:
        options["block_size"] = config.block_size
        if "sub_block" in options:
            options["sub_block"] = min(options["sub_block"], config.block_size)
    add_bos = config.family.add_bos or source.tokenizer.adds_bos
    return DecodingDefaults(**options, add_bos=add_bos and tokens.bos is not None)
