"""Checkpoint (and adapter) in, bundle out: the whole export in order. Does not decode, verify or build engines."""

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from lopa.export.checkpoint.config import CONFIG_NAME, CheckpointConfig, config_from_checkpoint
from lopa.export.checkpoint.lora import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_WEIGHTS_NAME,
    NO_ADAPTER,
    Adapter,
    adapter_from_folder,
)
from lopa.export.checkpoint.tensors import INDEX_NAME, StoredTensor, tensors_from_checkpoint
from lopa.export.checkpoint.tokenizer_files import (
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    TokenizerFiles,
    tokenizer_files_from_checkpoint,
)
from lopa.export.graph.plugin_passes import plugins_of
from lopa.export.graph.portable_lint import check_portable
from lopa.export.graph.trace import graph_from_dimensions
from lopa.export.progress import Progress, silent
from lopa.export.staging import check_destination, staged_folder
from lopa.export.weights.background_digests import digests_in_background
from lopa.export.weights.plan import (
    Dtype,
    PlannedWeight,
    check_layer_count,
    check_stored_tensors,
    planned_weights_from_config,
    tensor_records_from_plan,
)
from lopa.export.weights.quantization import QuantizationChoice, quantized_plan
from lopa.export.weights.stage_split import parts_from_records
from lopa.export.weights.writer import write_weights
from lopa.runtime.bundle import Bundle, sha256_of_file
from lopa.runtime.bundle.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
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
_TOOLS = ("lopa-export", "torch", "onnxscript", "onnx-ir", "safetensors", "tokenizers")


@dataclass(frozen=True)
class Source:
    """Everything an export reads, checked as far as it can be without reading weights."""

    checkpoint: Path
    lora: Path | None
    config: CheckpointConfig
    tokenizer: TokenizerFiles
    stored: dict[str, StoredTensor]
    planned: list[PlannedWeight]
    adapter: Adapter


def bundle_from_checkpoint(
    checkpoint: Path,
    destination: Path,
    *,
    lora: Path | None = None,
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

    `dtype` is that of the tensors that `quantization` does not make integers. There is a graph for each of `dialects`
    (standard, portable, or both in this order) over one file of weights. `with_logits` adds the logits to the outputs,
    for verification. `stages` above 1 adds the standard graphs of a pipeline of so many stages over the same weights.
    `plugins` puts the functions of domain `lopa` into the standard graphs (docs/plugins.md).
    Raises BadInputError for anything wrong with the source, the destination or the combination of options,
    CheckFailedError for a portable graph that breaks its dialect's rules; then nothing is left behind, and a
    bundle that was to be overwritten is untouched.
    """
    tell = progress or silent
    _check_dialects(dialects, quantization, stages, plugins=plugins)
    check_destination(destination, overwrite=overwrite)
    tell("reading the checkpoint", 0, 0)
    source = source_from_checkpoint(checkpoint, lora)
    planned = source.planned if quantization is None else quantized_plan(source.planned, quantization)
    records = tensor_records_from_plan(planned, dtype)
    parts = parts_from_records(records, source.config.dimensions.layers, stages)
    total = max(record.offset + record.length for record in records.values())
    read = [*_files_of_adapter(source), *_files_of_checkpoint(source)]
    with (
        staged_folder(destination, overwrite=overwrite, room=total + _ROOM_BESIDE_WEIGHTS) as folder,
        digests_in_background(read) as digests,
    ):
        # Weights before the graph: what a user can have wrong, bad values or a full disk, shows sooner.
        weights = write_weights(
            folder / WEIGHTS_NAME,
            planned,
            records,
            source.stored,
            source.adapter,
            lambda done: tell("writing weights", done, total),
        )
        whole = whole_model(source.config.dimensions.layers)
        graphs = [(GRAPH_NAMES[dialect], dialect, whole) for dialect in dialects]
        of_stages: list[tuple[str, Dialect, ModelPart]] = [
            (stage_name(number, stages), "standard", part) for number, part in enumerate(parts) if stages > 1
        ]
        functions: set[str] = set()
        for name, dialect, part in (*graphs, *of_stages):
            tell(f"tracing {name}", 0, 0)
            graph = graph_from_dimensions(
                source.config.dimensions,
                records,
                WEIGHTS_NAME,
                dialect=dialect,
                dtype=dtype,
                with_logits=with_logits,
                part=part,
                plugins=plugins and dialect == "standard",
            )
            functions.update(plugins_of(graph))
            tell(f"checking and writing {name}", 0, 0)
            if dialect == "portable":
                check_portable(ir.to_proto(graph), name)
            ir.save(graph, folder / name)
        (folder / TOKENIZER_NAME).write_bytes(source.tokenizer.tokenizer)
        (folder / TOKENIZER_CONFIG_NAME).write_bytes(source.tokenizer.tokenizer_config)
        names = [name for name, _, _ in (*graphs, *of_stages)]
        others = [_file_record(folder / name) for name in (*names, TOKENIZER_NAME, TOKENIZER_CONFIG_NAME)]
        tell("hashing the source", 0, 0)
        origin = _origin(source, digests.result())
        manifest = _manifest(
            source,
            records,
            [weights, *others],
            [Stage(graph=name, first_layer=part.first, end_layer=part.end) for name, _, part in of_stages],
            origin,
            dialects,
            dtype=dtype,
            quantization=quantization,
            with_logits=with_logits,
            plugins=sorted(functions),
        )
        text = json_from_record(manifest)
        manifest_from_json(text, source=f"the manifest for {checkpoint}")  # a bundle that nothing opens is not made
        (folder / MANIFEST_NAME).write_bytes(text)
    return Bundle.open(destination)


def stage_name(number: int, stages: int) -> str:
    """File name of a stage's graph. It lies beside the weights: ONNX lets no graph refer to a folder above its own."""
    return f"model.stage-{number}-of-{stages}.onnx"


def source_from_checkpoint(checkpoint: Path, lora: Path | None) -> Source:
    """Open a checkpoint and its adapter and check that they belong together.

    Raises BadInputError for whatever is missing, broken, contradictory or unsupported.
    """
    config = config_from_checkpoint(checkpoint)
    tokenizer = tokenizer_files_from_checkpoint(checkpoint, config)
    stored = tensors_from_checkpoint(checkpoint)
    check_layer_count(config, stored, source=str(checkpoint))
    planned = planned_weights_from_config(config)
    # A tied checkpoint may still carry its head.
    ignored = {config.architecture.outer_names["head.weight"]} if config.tied_embeddings else set()
    check_stored_tensors(planned, stored, ignored=ignored, source=str(checkpoint))
    shapes = {weight.source: weight.source_shape for weight in planned}
    adapter = NO_ADAPTER if lora is None else adapter_from_folder(lora, shapes)
    return Source(checkpoint, lora, config, tokenizer, stored, planned, adapter)


def _check_dialects(
    dialects: Sequence[Dialect], quantization: QuantizationChoice | None, stages: int, *, plugins: bool
) -> None:
    if tuple(dialects) not in (("standard",), ("portable",), ("standard", "portable")):
        raise ValueError(f"received dialects {dialects}, expected standard, portable, or both in this order")
    if "portable" in dialects and quantization is not None:
        raise BadInputError(
            f"a portable graph with matrices in {quantization.kind}",
            expected="a portable graph in floats: its operators know no integer products",
            remedy="leave --quantize out (for Ascend, ATC's own tools quantize a float model), or export with "
            "--dialect standard",
        )
    if stages > 1 and "standard" not in dialects:
        raise BadInputError(
            f"{stages} stages in the portable dialect alone",
            expected="stages in the standard dialect: the portable graph is always whole",
            remedy="leave --stages out, or export with --dialect both",
        )
    if plugins and "standard" not in dialects:
        raise BadInputError(
            "plugins in the portable dialect alone",
            expected="plugins in the standard dialect: a portable graph has plain operators only",
            remedy="leave --plugins out, or export with --dialect both",
        )


def _manifest(
    source: Source,
    records: dict[str, TensorRecord],
    files: list[FileRecord],
    stages: list[Stage],
    origin: Origin,
    dialects: Sequence[Dialect],
    *,
    dtype: Dtype,
    quantization: QuantizationChoice | None,
    with_logits: bool,
    plugins: list[str],
) -> Manifest:
    architecture, tokens = source.config.architecture, source.tokenizer.special_tokens
    return Manifest(
        schema=SCHEMA_VERSION,
        contract=CONTRACT_VERSION,
        architecture=architecture.name,
        dialect=dialects[0],
        dtype=dtype,
        quantization=None if quantization is None else quantization.record,
        with_logits=with_logits,
        prediction_shift=architecture.prediction_shift,
        dimensions=source.config.dimensions,
        special_tokens=tokens,
        decoding=DecodingDefaults(add_bos=architecture.add_bos and tokens.bos is not None),
        graph=GRAPH_NAMES[dialects[0]],
        portable_graph=GRAPH_NAMES["portable"] if len(dialects) > 1 else None,
        weights=WEIGHTS_NAME,
        stages=stages,
        tensors=records,
        files=files,
        origin=origin,
        plugins=plugins,
    )


def _files_of_checkpoint(source: Source) -> list[Path]:
    """What the manifest gives digests of; the weights in the order in which they are read, more or less."""
    described = [source.checkpoint / name for name in (CONFIG_NAME, INDEX_NAME, TOKENIZER_NAME)]
    shards = sorted({tensor.file for tensor in source.stored.values()})
    return [path for path in (*described, *shards) if path.is_file()]


def _files_of_adapter(source: Source) -> list[Path]:
    return [source.lora / name for name in (ADAPTER_CONFIG_NAME, ADAPTER_WEIGHTS_NAME)] if source.lora else []


def _origin(source: Source, digests: Mapping[Path, str]) -> Origin:
    return Origin(
        checkpoint={path.name: digests[path] for path in _files_of_checkpoint(source)},
        adapter={path.name: digests[path] for path in _files_of_adapter(source)},
        tools={name: version for name in _TOOLS if (version := _version(name)) is not None},
    )


def _version(package: str) -> str | None:
    """None for a package that is not installed: lopa-export itself, when run from its source tree."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _file_record(path: Path) -> FileRecord:
    return FileRecord(path=path.name, size=path.stat().st_size, sha256=sha256_of_file(path))
