"""Content of a checkpoint's config.json. Other modules read the weights and the tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.export.checkpoint.family_choice import family_of_config
from lopa.export.checkpoint.packed_weights import PackedFormat, packed_format_from_config
from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import check_settings
from lopa.export.json_file import JsonValues, json_object_from_file
from lopa.runtime.bundle.manifest import ROLES, ModelDimensions
from lopa.runtime.errors import BadInputError

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
_MAX_BYTES = 2**20
_MAX_ENDS = 64
_REMEDY = "check that this is the checkpoint's folder and that its files are complete"


@dataclass(frozen=True)
class CheckpointConfig:
    """Checked content of config.json."""

    family: Family
    dimensions: ModelDimensions
    tied_embeddings: bool
    """True if the head shares the embedding's weight."""
    token_ids: dict[str, int]
    """Ids of the tokens in ROLES, as far as config.json has them."""
    stops: tuple[int, ...]
    """Tokens other than eos that also end an answer."""
    block_size: int | None
    """Positions per block in training according to config.json, or None for the family's default.

    The config.json of an autoregressive checkpoint has no block size.
    """
    packed: PackedFormat | None = None
    """Layout of packed matrices; None if no matrices are quantized."""

    @property
    def architecture(self) -> Architecture:
        """Network of the family."""
        return self.family.architecture


def config_from_checkpoint(checkpoint: Path, family: str | None = None) -> CheckpointConfig:
    """Read and check config.json in the folder `checkpoint`, and the end tokens in generation_config.json.

    `family` is for a checkpoint that does not name its family. Raises BadInputError for a missing or broken file, and
    for a checkpoint of an unknown family or of a family other than the requested one. Raises it also for settings that
    the exported forward does not support: scaled rotary positions, sliding windows, experts and other activations. A
    family may list further settings.
    """
    config = _values_of(checkpoint / CONFIG_NAME)
    found = family_of_config(config, family)
    check_settings(config, found.settings)
    dimensions = found.sizes(config)
    ids = {role: _ids(config, role, found, dimensions.vocab_size) for role in ROLES}
    more = _generation_eos_ids(checkpoint, found, dimensions.vocab_size)
    ends = list(dict.fromkeys([*ids["eos"], *more]))
    return CheckpointConfig(
        family=found,
        dimensions=dimensions,
        tied_embeddings=config.get_bool(found.tied),
        token_ids={role: given[0] for role, given in ids.items() if given},
        stops=tuple(ends[1:] if ids["eos"] else ends),
        block_size=_block_size(config, found),
        packed=_packed_format(config, dimensions),
    )


def _values_of(path: Path) -> JsonValues:
    return JsonValues(json_object_from_file(path, remedy=_REMEDY, max_bytes=_MAX_BYTES), str(path), _REMEDY)


def _packed_format(config: JsonValues, dimensions: ModelDimensions) -> PackedFormat | None:
    found = packed_format_from_config(config)
    if found is not None and dimensions.moe is not None:
        raise BadInputError(
            f"{config.source} has a quantization_config and experts",
            expected="a mixture of experts that is not quantized",
            remedy="export the original checkpoint",
        )
    return found


def _block_size(config: JsonValues, family: Family) -> int | None:
    if family.block_size is None:
        return None
    names_family = config.values.get("model_type") == family.model_type
    given = names_family or config.values.get(family.block_size) is not None
    return config.get_int(family.block_size, max=2**20) if given else None


def _ids(config: JsonValues, role: str, family: Family, vocab_size: int) -> list[int]:
    """Return the ids of a role: none, one, or several for eos if the family allows it."""
    name = f"{role}_token_id"
    value: Any = config.values.get(name)
    several = _MAX_ENDS if role == "eos" and family.more_ends else 1
    given = value if isinstance(value, list) and 1 <= len(value) <= several else [value]
    return [config.checked_int(name, each, min=0, max=vocab_size - 1) for each in given] if value is not None else []


def _generation_eos_ids(checkpoint: Path, family: Family, vocab_size: int) -> list[int]:
    """Return the ids in eos_token_id of generation_config.json, or none without the file."""
    path = checkpoint / GENERATION_CONFIG_NAME
    return _ids(_values_of(path), "eos", family, vocab_size) if family.more_ends and path.is_file() else []
