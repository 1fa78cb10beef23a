"""Content of a checkpoint's config.json. Other modules read the weights and the tokenizer."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lopa.export.checkpoint.family_choice import family_of_config
from lopa.export.checkpoint.packed_weights import PACKING_FIELDS, PackedFormat, packed_format_from_config
from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import FOR_ALL_FAMILIES, check_settings
from lopa.export.json_file import JsonValues, json_object_from_file, shown
from lopa.runtime.bundle.manifest import ROLES, ModelDimensions
from lopa.runtime.errors import BadInputError

CONFIG_NAME = "config.json"
GENERATION_CONFIG_NAME = "generation_config.json"
_MAX_BYTES = 2**20
_MAX_ENDS = 64
_MAX_NESTED = 1000
"""Entries of a nested object."""
HARMLESS_TWICE = frozenset(("dtype", "torch_dtype", "initializer_range", "transformers_version", "_name_or_path"))
"""Entries that may differ between config.json and its nested object."""
_QUANTIZER_FILES = ("quantize_config.json", "quant_config.json")
"""Files of quantizers with entries of quantization_config."""
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
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Options of GenerationConfig in generation_config.json, for families whose bundles have them as defaults."""
    warnings: tuple[str, ...] = ()
    """Messages on entries that the export does not know and ignores."""

    @property
    def architecture(self) -> Architecture:
        """Network of the family."""
        return self.family.architecture


def config_from_checkpoint(checkpoint: Path, family: str | None = None) -> CheckpointConfig:
    """Read and check config.json in the folder `checkpoint`, and the token ids in generation_config.json.

    `family` is for a checkpoint that does not name its family. Raises BadInputError for a missing or broken file, and
    for a checkpoint of an unknown family or of a family other than the requested one. Raises it also for settings that
    the exported forward does not support: scaled rotary positions, sliding windows, experts and other activations. A
    family may list further settings.
    """
    config = _values_of(checkpoint / CONFIG_NAME)
    found = family_of_config(config, family)
    config = _with_nested(config, found)
    check_settings(config, found.settings, found.reads)
    _check_adapter_folder(checkpoint, found)
    dimensions = found.sizes(config)
    ids = {role: _ids(config, role, found, dimensions.vocab_size) for role in ROLES}
    path = checkpoint / GENERATION_CONFIG_NAME
    generation = _values_of(path) if path.is_file() else JsonValues({}, str(path), _REMEDY)
    more = _ids(generation, "eos", found, dimensions.vocab_size) if found.more_ends else []
    ends = list(dict.fromkeys([*ids["eos"], *more]))
    mask = _ids(generation, "mask", found, dimensions.vocab_size) or ids["mask"]
    if mask != (ids["mask"] or mask):
        raise generation.error_for("mask_token_id", mask[0], f"{ids['mask'][0]}, as in {CONFIG_NAME}")
    ids["mask"] = mask
    packed, unknown_packing = _packed_format(config, dimensions, checkpoint)
    return CheckpointConfig(
        family=found,
        dimensions=dimensions,
        tied_embeddings=config.get_bool(found.tied),
        token_ids={role: given[0] for role, given in ids.items() if given},
        stops=tuple(ends[1:] if ids["eos"] else ends),
        block_size=_block_size(config, found),
        packed=packed,
        defaults={} if found.generation is None else found.generation(generation),
        warnings=_warnings(config, _used_fields(found)) + unknown_packing,
    )


def _values_of(path: Path) -> JsonValues:
    return JsonValues(json_object_from_file(path, remedy=_REMEDY, max_bytes=_MAX_BYTES), str(path), _REMEDY)


def _with_nested(config: JsonValues, family: Family) -> JsonValues:
    """Return `config` with the entries of the family's nested object beside its own, which must not contradict them."""
    if family.nested is None:
        return config
    inner, outer = config.get_object(family.nested, max_count=_MAX_NESTED), config.without(family.nested).values
    for name in inner.keys() & outer.keys() - {"model_type", "architectures"} - HARMLESS_TWICE:
        if inner[name] != outer[name]:
            raise config.error_for(name, outer[name], f"{shown(inner[name])}, as in {family.nested}")
    return JsonValues({**inner, **outer}, config.source, config.remedy)


def _used_fields(family: Family) -> Collection[str]:
    """Return the names of the entries of config.json that the export reads or compares."""
    names = ("model_type", "architectures", "quantization_config", family.tied, family.block_size, family.marker)
    settings = (setting.name for setting in (*family.settings, *FOR_ALL_FAMILIES))
    ids = (f"{role}_token_id" for role in ROLES)
    return {name for name in (*names, *ids, *family.reads, *settings) if name is not None}


def _warnings(config: JsonValues, used: Collection[str]) -> tuple[str, ...]:
    unknown = unknown_fields(config.values, used)
    return (f"{config.source}: ignoring {', '.join(unknown)}, which lopa-export does not know",) if unknown else ()


def _check_adapter_folder(checkpoint: Path, family: Family) -> None:
    if family.adapter_folder is not None and (checkpoint / "adapter").is_dir():
        raise BadInputError(
            f"{checkpoint} has an adapter in its folder adapter: it is {family.adapter_folder}",
            expected=f"a checkpoint of {family.model_names}",
            remedy="export another checkpoint; this kind is not supported",
        )


def _packed_format(
    config: JsonValues, dimensions: ModelDimensions, checkpoint: Path
) -> tuple[PackedFormat | None, tuple[str, ...]]:
    """Return the layout of packed matrices and warnings. Files that quantizers write must not contradict it."""
    found = packed_format_from_config(config)
    if found is not None and dimensions.moe is not None:
        raise BadInputError(
            f"{config.source} has a quantization_config and experts",
            expected="a mixture of experts that is not quantized",
            remedy="export the original checkpoint",
        )
    if found is None:
        return None, ()
    given = config.values["quantization_config"]
    for path in (checkpoint / name for name in _QUANTIZER_FILES):
        both = {"quantization_config": {**given, **_values_of(path).values}} if path.is_file() else config.values
        if packed_format_from_config(JsonValues(both, str(path), _REMEDY)) != found:
            raise BadInputError(
                f"{path} contradicts the quantization_config in {config.source}",
                expected="the same method, layout, bits and group size in both",
                remedy=_REMEDY,
            )
    return found, _warnings(JsonValues(given, f"{config.source}, quantization_config", _REMEDY), PACKING_FIELDS)


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


_NAMES = """
_attn_implementation _attn_implementation_autoset _commit_hash _experts_implementation _name_or_path attn_implementation
auto_map chunk_size_feed_forward decoder_start_token_id dtype finetuning_task id2label is_decoder label2id name_or_path
output_attentions output_hidden_states prefix problem_type return_dict sep_token_id task_specific_params tf_legacy_loss
tie_encoder_decoder tokenizer_class torch_dtype torchscript transformers_version unsloth_fixed unsloth_version
use_bfloat16 use_cache attention_dropout embedding_dropout hidden_dropout output_dropout residual_dropout
init_cutoff_factor init_device init_fn init_std initializer_range precision output_router_logits router_aux_loss_coef
router_z_loss_coef conplemenrary_mask debug ep_size fuse_cross_entropy micro_forward skip_checkpoint use_deepep
alibi_bias_max attention_layer_norm_with_affine flash_attention max_window_layers norm_topk_prob num_mtp_layers
num_nextn_predict_layers pretraining_tp rope_full_precision sliding_window
effective_n_kv_heads tie_word_embeddings
"""
HARMLESS = frozenset(_NAMES.split())
"""Names of transformers and of the published code. They concern loading, training and caching, or parts that only a
refused entry turns on.
"""


def unknown_fields(values: Mapping[str, Any], used: Collection[str]) -> list[str]:
    """Return the names in `values` that are neither in `used` nor in HARMLESS, unless null, false or empty."""
    unset: tuple[object, ...] = (None, False, "", [], {})
    return [name for name, value in values.items() if value not in unset and name not in used and name not in HARMLESS]
