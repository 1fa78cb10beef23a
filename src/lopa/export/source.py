"""Source of an export: the checkpoint and its adapter, checked as far as possible without reading weights.

The module imports neither torch nor ONNX, so that unsupported checkpoints are rejected at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lopa import __version__
from lopa.export.checkpoint.config import CONFIG_NAME, CheckpointConfig, config_from_checkpoint
from lopa.export.checkpoint.folder import check_adapter_folder, check_checkpoint_folder
from lopa.export.checkpoint.lora import (
    ADAPTER_CONFIG_NAME,
    ADAPTER_WEIGHTS_NAME,
    NO_ADAPTER,
    Adapter,
    adapter_from_folder,
)
from lopa.export.checkpoint.packed_weights import with_packed_weights
from lopa.export.checkpoint.tensors import (
    INDEX_NAME,
    CheckpointTensor,
    have_equal_values,
    tensors_from_checkpoint,
    with_single_experts,
)
from lopa.export.checkpoint.tokenizer_files import TOKENIZER_NAME, TokenizerFiles, tokenizer_files_from_checkpoint
from lopa.export.families.family import Architecture
from lopa.export.weights.plan import WeightPlan, check_stored_tensors, source_shapes, weight_plan_from_network
from lopa.runtime.bundle.manifest import Origin
from lopa.runtime.bundle.network import EMBEDDING, HEAD, network_from_dimensions
from lopa.runtime.errors import BadInputError
from lopa.runtime.install_hint import installed_version

_TOOLS = ("torch", "onnxscript", "onnx-ir", "safetensors", "tokenizers")


@dataclass(frozen=True)
class ExportSource:
    """A checkpoint and its adapter, opened and checked."""

    checkpoint: Path
    lora: Path | None
    config: CheckpointConfig
    tokenizer: TokenizerFiles
    stored: dict[str, CheckpointTensor]
    planned: WeightPlan
    """All tensors in floating point, before quantization."""
    adapter: Adapter

    @property
    def warnings(self) -> tuple[str, ...]:
        """Messages on entries of the files that are unknown and ignored."""
        return (*self.config.warnings, *self.adapter.warnings)

    @property
    def checkpoint_files(self) -> list[Path]:
        """Files of the checkpoint whose digests are in the manifest, with weights roughly in the order of reading."""
        described = [self.checkpoint / name for name in (CONFIG_NAME, INDEX_NAME, TOKENIZER_NAME)]
        shards = sorted({tensor.file for tensor in self.stored.values()})
        return [path for path in (*described, *shards) if path.is_file()]

    @property
    def adapter_files(self) -> list[Path]:
        """Files of the adapter whose digests are in the manifest."""
        return [self.lora / name for name in (ADAPTER_CONFIG_NAME, ADAPTER_WEIGHTS_NAME)] if self.lora else []


def source_from_checkpoint(
    checkpoint: Path, lora: Path | None, family: str | None = None, chat_template: Path | None = None
) -> ExportSource:
    """Open a checkpoint and its adapter, and check that they fit each other.

    `family` is for a checkpoint that does not name its family. The file `chat_template` replaces its template. Raises
    BadInputError for anything missing, broken, contradictory or unsupported.
    """
    check_checkpoint_folder(checkpoint)
    if lora is not None:
        check_adapter_folder(lora)
    config = config_from_checkpoint(checkpoint, family)
    tokenizer = tokenizer_files_from_checkpoint(checkpoint, config, chat_template)
    single = with_single_experts(tensors_from_checkpoint(checkpoint))
    stored = with_packed_weights(single, config.packed, str(checkpoint))
    if config.tied_embeddings:
        stored = _with_tied_head(stored, config.architecture)
    network = network_from_dimensions(config.dimensions)
    planned = weight_plan_from_network(network, config.architecture)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    ignored = {name for name in stored if name.startswith(config.family.ignored_tensors)}
    ignored |= _zero_biases(stored, planned)
    check_stored_tensors(planned, shapes, ignored=ignored, source=str(checkpoint))
    tied = config.tied_embeddings and _is_tied(stored, config)
    base = {name: stored[name] for name in source_shapes(planned)}
    adapter = (
        NO_ADAPTER
        if lora is None
        else adapter_from_folder(lora, base, config.architecture, tied=tied, ignored=config.family.ignored_tensors)
    )
    return ExportSource(checkpoint, lora, config, tokenizer, stored, planned, adapter)


def _with_tied_head(stored: Mapping[str, CheckpointTensor], architecture: Architecture) -> dict[str, CheckpointTensor]:
    """Return `stored` with the embedding also as head, or the head also as embedding, if one of them is missing."""
    outer = (architecture.outer_names[EMBEDDING], architecture.outer_names[HEAD])
    present = [stored[name] for name in outer if name in stored]
    return {**stored, **dict.fromkeys(outer, present[0])} if len(present) == 1 else dict(stored)


def _is_tied(stored: Mapping[str, CheckpointTensor], config: CheckpointConfig) -> bool:
    """Return True if embedding and head have the same values.

    transformers 5 does not tie a head whose own values are in the file, so the bundle has them. Raises BadInputError if
    the family has its own entry for ties, whose code ignores such a head.
    """
    names = config.architecture.outer_names
    embedding, head = stored[names[EMBEDDING]], stored[names[HEAD]]
    if embedding is head or have_equal_values(embedding, head):
        return True
    if config.family.tied != "tie_word_embeddings":
        raise BadInputError(
            f"{head.file} has a head with other values than the embedding, but {CONFIG_NAME} has {config.family.tied}",
            expected="the same values, or no head",
            remedy=f"set {config.family.tied} to false if the model has its own head",
        )
    return False


def _zero_biases(stored: Mapping[str, CheckpointTensor], planned: WeightPlan) -> set[str]:
    """Return the biases that the network lacks and whose values are all 0. Some GPTQ files have one for each matrix."""
    sources = {weight.source for weight in planned}
    modules = {source.removesuffix(".weight") for source in sources}
    return {
        name
        for name, tensor in stored.items()
        if name.endswith(".bias") and name not in sources and name.removesuffix(".bias") in modules
        if not tensor.read().any()
    }


def origin_of_source(source: ExportSource, digests: Mapping[Path, str]) -> Origin:
    """Return the manifest's record of `source`; `digests` has the SHA-256 of all its files."""
    return Origin(
        checkpoint={path.name: digests[path] for path in source.checkpoint_files},
        adapter={path.name: digests[path] for path in source.adapter_files},
        tools={"lopa-export": __version__}
        | {name: version for name in _TOOLS if (version := installed_version(name)) is not None},
    )
