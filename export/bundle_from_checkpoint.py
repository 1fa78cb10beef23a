"""Checkpoint (and adapter) in, bundle out: the whole export in order. Does not decode, verify or build engines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from lopa.export.checkpoint.tokenizer_files import TOKENIZER_CONFIG_NAME, TOKENIZER_NAME
from lopa.export.cpu_graph.twin import TwinOf, twin_for_cpu, unpacked_twin
from lopa.export.families.family import D2F
from lopa.export.graph.plugin_passes import plugins_of, with_plugins
from lopa.export.graph.portable_lint import check_portable
from lopa.export.graph.trace import graph_from_dimensions
from lopa.export.progress import Progress, silent
from lopa.export.source import Source, origin_of_source, source_from_checkpoint
from lopa.export.staging import check_destination, staged_folder
from lopa.export.weights.digests import digests_in_background
from lopa.export.weights.plan import Dtype, tensor_records_from_plan
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.export.weights.stage_split import parts_from_records
from lopa.export.weights.writer import write_weights
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    CpuGraph,
    DecodingDefaults,
    Dialect,
    FileRecord,
    Manifest,
    Origin,
    Stage,
    TensorRecord,
    manifest_from_json,
)
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.errors import BadInputError

GRAPH_NAMES: dict[Dialect, str] = {"standard": "model.onnx", "portable": "portable.onnx"}
WEIGHTS_NAME = "model.onnx.data"
_ROOM_BESIDE_WEIGHTS = 1 << 26
"""Bytes: more than the graph and the tokenizer of any model take."""


@dataclass(frozen=True)
class _Choices:
    """What a bundle is to be; as the arguments of bundle_from_checkpoint."""

    dtype: Dtype
    quantization: QuantizationChoice | None
    dialects: tuple[Dialect, ...]
    with_logits: bool
    stages: int
    plugins: bool


@dataclass(frozen=True)
class _Graph:
    """One graph file of the bundle."""

    name: str
    dialect: Dialect
    part: ModelPart

    @property
    def is_stage(self) -> bool:
        """Whether it is of some layers only."""
        return not (self.part.is_first and self.part.is_last)


def bundle_from_checkpoint(
    checkpoint: Path,
    destination: Path,
    *,
    lora: Path | None = None,
    family: str | None = None,
    dtype: Dtype = "float32",
    quantization: QuantizationChoice | None = None,
    dialects: Sequence[Dialect] = ("standard",),
    with_logits: bool = False,
    stages: int = 1,
    plugins: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Bundle:
    """Export the folder `checkpoint`, merged with the adapter folder `lora`, to the new folder `destination`.

    `family` (a name in lopa.export.families) is that of a checkpoint that does not say so itself: an autoregressive one
    has the same layers. `dtype` is that of the tensors that `quantization` does not make integers. There is a graph for
    each of `dialects` (standard, portable, or both in this order) over one file of weights. `with_logits` adds the
    logits to the outputs, for verification. `stages` above 1 adds the standard graphs of a pipeline of so many stages
    over the same weights. Standard graphs have twins for ONNX Runtime's CPU beside them (lopa.export.cpu_graph).
    `plugins` puts the functions of domain `lopa` into the standard graphs (docs/plugins.md).
    Raises BadInputError for anything wrong with the source, the destination or the combination of options,
    CheckFailedError for a portable graph that breaks its dialect's rules; then nothing is left behind, and a
    bundle that was to be overwritten is untouched.
    """
    tell = progress or silent
    choices = _Choices(dtype, quantization, tuple(dialects), with_logits, stages, plugins)
    _check(choices)
    check_destination(destination, overwrite=overwrite)
    tell("reading the checkpoint", 0, 0)
    source = source_from_checkpoint(checkpoint, lora, family)
    if source.tokenizer.assumed_mask:
        mask = source.tokenizer.special_tokens.mask
        tell(f"no file names the mask token: taking {mask}, as {source.config.family.published} has it", 0, 0)
    plan = source.planned if quantization is None else quantized_plan(source.planned, quantization)
    records = tensor_records_from_plan(plan, dtype)
    graphs = _graphs(choices, records, source.config.dimensions.layers)
    total = max(record.offset + record.length for record in records.values())
    with (
        staged_folder(destination, overwrite=overwrite, room=total + _ROOM_BESIDE_WEIGHTS) as folder,
        digests_in_background([*source.adapter_files, *source.checkpoint_files]) as digests,
    ):
        # Weights before the graph: what a user can have wrong, bad values or a full disk, shows sooner.
        weights = write_weights(
            folder / WEIGHTS_NAME,
            plan,
            records,
            source.stored,
            source.adapter,
            lambda done: tell("writing weights", done, total),
        )
        functions, twins = _write_graphs(folder, graphs, source, records, choices, tell)
        (folder / TOKENIZER_NAME).write_bytes(source.tokenizer.tokenizer)
        (folder / TOKENIZER_CONFIG_NAME).write_bytes(source.tokenizer.tokenizer_config)
        names = [
            *(graph.name for graph in graphs),
            *(twin.graph for twin in twins),
            TOKENIZER_NAME,
            TOKENIZER_CONFIG_NAME,
        ]
        files = [weights, *(_file_record(folder / name) for name in names)]
        tell("hashing the source", 0, 0)
        origin = origin_of_source(source, digests.result())
        manifest = _manifest(source, choices, records, graphs, twins, files, functions, origin)
        text = json_from_record(manifest)
        manifest_from_json(text, source=f"the manifest for {checkpoint}")  # a bundle that nothing opens is not made
        (folder / MANIFEST_NAME).write_bytes(text)
    return Bundle.open(destination)


def stage_name(number: int, stages: int) -> str:
    """File name of a stage's graph. It lies beside the weights: ONNX lets no graph refer to a folder above its own."""
    return f"model.stage-{number}-of-{stages}.onnx"


def cpu_name(name: str) -> str:
    """File name of the twin for CPUs of the graph in the file `name`: model.cpu.onnx."""
    return f"{name.removesuffix('.onnx')}.cpu.onnx"


def unpacked_name(name: str) -> str:
    """File name of its twin with int4 matrices unpacked: model.cpu-unpacked.onnx."""
    return f"{name.removesuffix('.onnx')}.cpu-unpacked.onnx"


def _check(choices: _Choices) -> None:
    if choices.dialects not in (("standard",), ("portable",), ("standard", "portable")):
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


def _graphs(choices: _Choices, records: dict[str, TensorRecord], layers: int) -> list[_Graph]:
    """Those of the whole model, the first dialect's first, then those of stages: none for a single one."""
    whole = [_Graph(GRAPH_NAMES[dialect], dialect, whole_model(layers)) for dialect in choices.dialects]
    parts = parts_from_records(records, layers, choices.stages)
    stages = [_Graph(stage_name(number, len(parts)), "standard", part) for number, part in enumerate(parts)]
    return whole + (stages if len(stages) > 1 else [])


def _write_graphs(
    folder: Path,
    graphs: Sequence[_Graph],
    source: Source,
    records: dict[str, TensorRecord],
    choices: _Choices,
    tell: Callable[[str, int, int], None],
) -> tuple[list[str], list[CpuGraph]]:
    """Trace, check and write one after the other; the plugins in any of them, sorted, and the twins for CPUs."""
    found: set[str] = set()
    twins = []
    for graph in graphs:
        tell(f"tracing {graph.name}", 0, 0)
        model = graph_from_dimensions(
            source.config.dimensions,
            records,
            WEIGHTS_NAME,
            dialect=graph.dialect,
            dtype=choices.dtype,
            with_logits=choices.with_logits,
            part=graph.part,
        )
        made: dict[bool, ir.Model | None] = {}  # by whether int4 matrices are unpacked
        if graph.dialect == "standard" and choices.dtype != "bfloat16":  # which ONNX Runtime's CPU refuses
            of = TwinOf(source.config.dimensions, graph.part)
            made = {False: twin_for_cpu(model, of), True: unpacked_twin(model, of)}
        if graph.dialect == "standard" and choices.plugins:
            model = with_plugins(model)
        tell(f"checking and writing {graph.name}", 0, 0)
        if graph.dialect == "portable":
            check_portable(ir.to_proto(model), graph.name)
        ir.save(model, folder / graph.name)
        found.update(plugins_of(model))
        digest = sha256_of_file(folder / graph.name)
        for unpacked, twin in made.items():
            if twin is not None:
                name = unpacked_name(graph.name) if unpacked else cpu_name(graph.name)
                ir.save(twin, folder / name)
                twins.append(CpuGraph(graph=name, source=graph.name, source_sha256=digest, unpacked=unpacked))
    return sorted(found), twins


def _manifest(
    source: Source,
    choices: _Choices,
    records: dict[str, TensorRecord],
    graphs: Sequence[_Graph],
    twins: list[CpuGraph],
    files: list[FileRecord],
    plugins: list[str],
    origin: Origin,
) -> Manifest:
    architecture, tokens = source.config.architecture, source.tokenizer.special_tokens
    dialects, quantization = choices.dialects, choices.quantization
    return Manifest(
        schema=SCHEMA_VERSION,
        contract=CONTRACT_VERSION,
        architecture=architecture.name,
        dialect=dialects[0],
        dtype=choices.dtype,
        quantization=None if quantization is None else quantization.record,
        with_logits=choices.with_logits,
        prediction_shift=architecture.prediction_shift,
        dimensions=source.config.dimensions,
        special_tokens=tokens,
        decoding=_decoding(source),
        graph=GRAPH_NAMES[dialects[0]],
        portable_graph=GRAPH_NAMES["portable"] if len(dialects) > 1 else None,
        weights=WEIGHTS_NAME,
        stages=[
            Stage(graph=graph.name, first_layer=graph.part.first, end_layer=graph.part.end)
            for graph in graphs
            if graph.is_stage
        ],
        tensors=records,
        files=files,
        origin=origin,
        cpu_graphs=twins,
        plugins=plugins,
    )


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


def _file_record(path: Path) -> FileRecord:
    return FileRecord(path=path.name, size=path.stat().st_size, sha256=sha256_of_file(path))
