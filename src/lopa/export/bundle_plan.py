"""Plan of a bundle: its source, tensors and graphs, all checked before a weight is read.

Imports neither torch nor ONNX: an error in a checkpoint or in the options does not wait for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lopa.export.families.family import D2F
from lopa.export.source import Source, source_from_checkpoint
from lopa.export.staging import check_destination
from lopa.export.weights.plan import Dtype, WeightPlan, tensor_records_from_plan
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.export.weights.stage_split import parts_from_records
from lopa.runtime.bundle.manifest import DecodingDefaults, Dialect, TensorRecord, check_default_options
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import checked_defaults

GRAPH_NAMES: dict[Dialect, str] = {"standard": "model.onnx", "portable": "portable.onnx"}


@dataclass(frozen=True, kw_only=True)
class BundleChoices:
    """Options of an export."""

    dtype: Dtype = "float32"
    """Type of the tensors that `quantization` leaves as floats."""
    quantization: QuantizationChoice | None = None
    dialects: Sequence[Dialect] = ("standard",)
    """Standard, portable, or both in this order: a graph for each, over one file of weights."""
    with_logits: bool = False
    """True to output the logits too, for verification."""
    stages: int = 1
    """Above 1: also the standard graphs of a pipeline of so many stages, over the same weights."""
    plugins: bool = False
    """True to use the functions of domain `lopa` in the standard graphs (docs/how-to/engines.md)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Decoding options by name, in place of those that the checkpoint was trained for."""
    chat_template: Path | None = None
    """A file, in place of the checkpoint's own template."""


@dataclass(frozen=True)
class PlannedGraph:
    """One graph file of the bundle."""

    name: str
    dialect: Dialect
    part: ModelPart

    @property
    def is_stage(self) -> bool:
        """True for a graph of some layers only."""
        return not (self.part.is_first and self.part.is_last)


@dataclass(frozen=True)
class BundlePlan:
    """A bundle before it is written."""

    destination: Path
    overwrite: bool
    choices: BundleChoices
    source: Source
    weights: WeightPlan
    """Tensors, quantized by `choices`."""
    records: dict[str, TensorRecord]
    graphs: Sequence[PlannedGraph]
    """Graphs of the whole model, the first dialect's first, then those of stages; a single stage has none."""
    decoding: DecodingDefaults
    """Decoding defaults that the checkpoint was trained for."""

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

    `family` is that of a checkpoint that does not say so itself. Raises BadInputError for anything wrong with the
    source, the destination or the combination of options, as far as config.json, file names and the headers of weights
    tell.
    """
    _check(choices)
    check_destination(destination, overwrite=overwrite)
    source = source_from_checkpoint(checkpoint, lora, family, choices.chat_template)
    weights = source.planned if choices.quantization is None else quantized_plan(source.planned, choices.quantization)
    records = tensor_records_from_plan(weights, choices.dtype)
    graphs = _graphs(choices, records, source.config.dimensions.layers)
    decoding = _decoding(source)
    choices = replace(choices, defaults=checked_defaults(choices.defaults))
    check_default_options(
        choices.defaults,
        decoding,
        positions=source.config.dimensions.max_positions,
        with_logits=choices.with_logits,
        prediction_shift=source.config.architecture.prediction_shift,
    )
    return BundlePlan(destination, overwrite, choices, source, weights, records, graphs, decoding)


def stage_name(number: int, stages: int) -> str:
    """File name of a stage's graph. It lies beside the weights: ONNX lets no graph refer to a folder above its own."""
    return f"model.stage-{number}-of-{stages}.onnx"


def _check(choices: BundleChoices) -> None:
    if tuple(choices.dialects) not in (("standard",), ("portable",), ("standard", "portable")):
        raise ValueError(f"received dialects {choices.dialects}, expected standard, portable, or both in this order")
    if "portable" in choices.dialects and choices.quantization is not None:
        raise BadInputError(
            f"a portable graph with matrices in {choices.quantization.kind}",
            expected="a portable graph in floats: its operators know no integer products",
            remedy="leave --quantize out (for Ascend, ATC's own tools quantize a float model), or export with "
            "--dialect standard",
        )
    if choices.stages > 1 and "standard" not in choices.dialects:
        raise BadInputError(
            f"{choices.stages} stages in the portable dialect alone",
            expected="stages in the standard dialect: the portable graph is always whole",
            remedy="leave --stages out, or export with --dialect both",
        )
    if choices.plugins and "standard" not in choices.dialects:
        raise BadInputError(
            "plugins in the portable dialect alone",
            expected="plugins in the standard dialect: a portable graph has plain operators only",
            remedy="leave --plugins out, or export with --dialect both",
        )


def _graphs(choices: BundleChoices, records: dict[str, TensorRecord], layers: int) -> list[PlannedGraph]:
    """Graphs of the whole model, the first dialect's first, then those of stages; a single stage has none."""
    whole = [PlannedGraph(GRAPH_NAMES[dialect], dialect, whole_model(layers)) for dialect in choices.dialects]
    parts = parts_from_records(records, layers, choices.stages)
    stages = [PlannedGraph(stage_name(number, len(parts)), "standard", part) for number, part in enumerate(parts)]
    return whole + (stages if len(stages) > 1 else [])


def _decoding(source: Source) -> DecodingDefaults:
    """The family's, or what an adapter makes of it; blocks as large as config.json says that they were trained."""
    config, tokens = source.config, source.tokenizer.special_tokens
    of_adapter = config.family.decoding_with_adapter
    options = {**D2F, **(of_adapter if source.lora is not None and of_adapter is not None else config.family.decoding)}
    if config.block_size is not None:
        options["block_size"] = config.block_size
        if "sub_block" in options:
            options["sub_block"] = min(options["sub_block"], config.block_size)
    return DecodingDefaults(**options, add_bos=config.family.add_bos and tokens.bos is not None)
