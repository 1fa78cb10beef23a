"""config.json of a checkpoint -> the facts that an export needs. Does not read weights or the tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.export.checkpoint.architecture import Architecture, architecture_of_model_type
from lopa.export.json_file import JsonValues, json_object_from_file, shown
from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError

CONFIG_NAME = "config.json"
_MOST_BYTES = 2**20
_REMEDY = "check that this is a Dream-format checkpoint folder and that its config.json is whole"


@dataclass(frozen=True)
class CheckpointConfig:
    """What config.json says, checked."""

    architecture: Architecture
    dimensions: ModelDimensions
    tied_embeddings: bool
    """True: the head uses the embedding's weight."""
    token_ids: dict[str, int]
    """Those of mask, eos, pad and bos that config.json gives."""


def config_from_checkpoint(checkpoint: Path) -> CheckpointConfig:
    """Read and check config.json in the folder `checkpoint`.

    Raises BadInputError for a missing or broken file, an unsupported model_type, and settings that the exported
    forward does not have (scaled rotary positions, sliding windows, another activation).
    """
    path = checkpoint / CONFIG_NAME
    values = json_object_from_file(path, remedy=_REMEDY, most=_MOST_BYTES)
    config = JsonValues(values, str(path), _REMEDY)
    architecture = architecture_of_model_type(values.get("model_type"), source=str(path))
    _check_supported(values, path)
    dimensions = _dimensions(config, path)
    return CheckpointConfig(
        architecture=architecture,
        dimensions=dimensions,
        tied_embeddings=config.flag("tie_word_embeddings"),
        token_ids=_token_ids(config, dimensions.vocab_size),
    )


def _check_supported(config: dict[str, Any], path: Path) -> None:
    unsupported = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "rope_scaling": _is_scaled(config.get("rope_scaling")),
        "rope_parameters": _is_scaled(config.get("rope_parameters")),
        "use_sliding_window": bool(config.get("use_sliding_window", False)),
        "layer_types": not _are_full(config.get("layer_types")),
    }
    for name, found in unsupported.items():
        if found:
            raise BadInputError(
                f"{path} has {name} = {shown(config[name])}",
                expected="hidden_act silu, unscaled rotary positions and no sliding window",
                remedy="export a checkpoint without this setting; it is not supported",
            )


def _is_scaled(rope: object) -> bool:
    """Whether rope_scaling, or rope_parameters as newer files call it, asks for more than plain rotary positions."""
    if rope is None:
        return False
    return not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default"


def _are_full(kinds: object) -> bool:
    """Whether layer_types, where it is given, is a list that names one kind of attention only."""
    return kinds is None or (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds))


def _dimensions(config: JsonValues, path: Path) -> ModelDimensions:
    values = config.values
    hidden = config.whole_number("hidden_size")
    heads = config.whole_number("num_attention_heads")
    kv_heads = config.whole_number("num_key_value_heads") if "num_key_value_heads" in values else heads
    head_size = config.whole_number("head_dim") if values.get("head_dim") is not None else hidden // heads
    rope = JsonValues({**values, **(values.get("rope_parameters") or {})}, str(path), _REMEDY)
    dimensions = ModelDimensions(
        vocab_size=config.whole_number("vocab_size", least=TOP_K),
        hidden_size=hidden,
        intermediate_size=config.whole_number("intermediate_size"),
        layers=config.whole_number("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        max_positions=config.whole_number("max_position_embeddings"),
        rope_theta=rope.number("rope_theta", least=1.0, most=1e12),
        rms_norm_eps=config.number("rms_norm_eps", least=1e-15, most=0.1),
    )
    for wrong, expected in (
        (values.get("head_dim") is None and hidden % heads != 0, "hidden_size a multiple of num_attention_heads"),
        (heads % kv_heads != 0, "num_attention_heads a multiple of num_key_value_heads"),
        (head_size < 2 or head_size % 2 != 0, "an even head size"),
    ):
        if wrong:
            raise BadInputError(f"{path}: sizes {dimensions}", expected=expected, remedy=_REMEDY)
    return dimensions


def _token_ids(config: JsonValues, vocab_size: int) -> dict[str, int]:
    ids: dict[str, int] = {}
    for role in ("mask", "eos", "pad", "bos"):
        name = f"{role}_token_id"
        value = config.values.get(name)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is not None:
            ids[role] = config.whole(name, value, least=0, most=vocab_size - 1)
    return ids
