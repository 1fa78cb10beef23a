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
from lopa.export.checkpoint.tensors import INDEX_NAME, CheckpointTensor, tensors_from_checkpoint
from lopa.export.checkpoint.tokenizer_files import TOKENIZER_NAME, TokenizerFiles, tokenizer_files_from_checkpoint
from lopa.export.weights.plan import WeightPlan, check_stored_tensors, source_shapes, weight_plan_from_network
from lopa.runtime.bundle.manifest import Origin
from lopa.runtime.bundle.network import HEAD, network_from_dimensions
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
    stored = with_packed_weights(tensors_from_checkpoint(checkpoint), config.packed, str(checkpoint))
    found = {name: tensor.shape for name, tensor in stored.items()}
    network = network_from_dimensions(config.dimensions)
    planned = weight_plan_from_network(network, config.architecture, tied=config.tied_embeddings)
    # A checkpoint with tied embeddings may still contain its head.
    ignored = {config.architecture.outer_names[HEAD]} if config.tied_embeddings else set()
    check_stored_tensors(planned, found, ignored=ignored, source=str(checkpoint))
    adapter = NO_ADAPTER if lora is None else adapter_from_folder(lora, source_shapes(planned), config.architecture)
    return ExportSource(checkpoint, lora, config, tokenizer, stored, planned, adapter)


def origin_of_source(source: ExportSource, digests: Mapping[Path, str]) -> Origin:
    """Return the manifest's record of `source`; `digests` has the SHA-256 of all its files."""
    return Origin(
        checkpoint={path.name: digests[path] for path in source.checkpoint_files},
        adapter={path.name: digests[path] for path in source.adapter_files},
        tools={"lopa-export": __version__}
        | {name: version for name in _TOOLS if (version := installed_version(name)) is not None},
    )
