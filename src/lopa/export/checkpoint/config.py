"""config.json of a checkpoint -> the facts that an export needs. Does not read weights or the tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.export.checkpoint.family_choice import family_of_config
from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import check_settings
from lopa.export.json_file import JsonValues, json_object_from_file
from lopa.runtime.bundle.manifest import ModelDimensions

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
_MAX_BYTES = 2**20
_MAX_ENDS = 64
_REMEDY = "check that this is the checkpoint's folder and that its files are whole"


@dataclass(frozen=True)
class CheckpointConfig:
    """What config.json says, checked."""

    family: Family
    dimensions: ModelDimensions
    tied_embeddings: bool
    """True: the head uses the embedding's weight."""
    token_ids: dict[str, int]
    """Those of mask, eos, pad and bos that config.json gives."""
    stops: tuple[int, ...]
    """Further tokens that end an answer, beside the one that is or will be its eos."""
    block_size: int | None
    """Positions of the blocks that it was trained on, where its family says so in config.json.

    None: the family's; an autoregressive checkpoint's config.json does not say.
    """

    @property
    def architecture(self) -> Architecture:
        """The family's network."""
        return self.family.architecture


def config_from_checkpoint(checkpoint: Path, family: str | None = None) -> CheckpointConfig:
    """Read and check config.json in the folder `checkpoint`, and which tokens generation_config.json ends with.

    `family` is that of a checkpoint that does not say so itself. Raises BadInputError for a missing or broken file, a
    checkpoint of no family or of another than asked for, and settings that the exported forward does not have (scaled
    rotary positions, sliding windows, experts, another activation, whatever else its family names).
    """
    config = _values_of(checkpoint / CONFIG_NAME)
    found = family_of_config(config, family)
    check_settings(config, found.settings)
    dimensions = found.sizes(config)
    ids = {role: _ids(config, role, found, dimensions.vocab_size) for role in ("mask", "eos", "pad", "bos")}
    more = _ends_of_generation(checkpoint, found, dimensions.vocab_size)
    ends = list(dict.fromkeys([*ids["eos"], *more]))
    return CheckpointConfig(
        family=found,
        dimensions=dimensions,
        tied_embeddings=config.flag(found.tied),
        token_ids={role: given[0] for role, given in ids.items() if given},
        stops=tuple(ends[1:] if ids["eos"] else ends),
        block_size=_block_size(config, found),
    )


def _values_of(path: Path) -> JsonValues:
    return JsonValues(json_object_from_file(path, remedy=_REMEDY, max=_MAX_BYTES), str(path), _REMEDY)


def _block_size(config: JsonValues, family: Family) -> int | None:
    if family.block_size is None:
        return None
    says_family = config.values.get("model_type") == family.model_type
    given = says_family or config.values.get(family.block_size) is not None
    return config.check_int(family.block_size, max=2**20) if given else None


def _ids(config: JsonValues, role: str, family: Family, vocab_size: int) -> list[int]:
    """None, one, or of eos several where the family has several."""
    name = f"{role}_token_id"
    value: Any = config.values.get(name)
    several = _MAX_ENDS if role == "eos" and family.more_ends else 1
    given = value if isinstance(value, list) and 1 <= len(value) <= several else [value]
    return [config.whole(name, each, min=0, max=vocab_size - 1) for each in given] if value is not None else []


def _ends_of_generation(checkpoint: Path, family: Family, vocab_size: int) -> list[int]:
    """The eos_token_id of generation_config.json, one or a list; none without the file."""
    path = checkpoint / GENERATION_CONFIG_NAME
    return _ids(_values_of(path), "eos", family, vocab_size) if family.more_ends and path.is_file() else []
