"""config.json of a checkpoint -> the facts that an export needs. Does not read weights or the tokenizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.export.architecture import Architecture, architecture_of_model_type
from lopa.export.json_file import json_object_from_file
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError
from lopa.runtime.manifest import ModelDimensions

CONFIG_NAME = "config.json"
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
    config = json_object_from_file(path, remedy=_REMEDY)
    architecture = architecture_of_model_type(config.get("model_type"), source=str(path))
    _check_supported(config, path)
    return CheckpointConfig(
        architecture=architecture,
        dimensions=_dimensions(config, path),
        tied_embeddings=_flag(config, "tie_word_embeddings", path),
        token_ids=_token_ids(config, path),
    )


def _check_supported(config: dict[str, Any], path: Path) -> None:
    unsupported = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "rope_scaling": _is_scaled(config.get("rope_scaling")),
        "rope_parameters": _is_scaled(config.get("rope_parameters")),
        "use_sliding_window": bool(config.get("use_sliding_window", False)),
        "layer_types": any(kind != "full_attention" for kind in config.get("layer_types") or ()),
    }
    for name, found in unsupported.items():
        if found:
            raise BadInputError(
                f"{path} has {name} = {config[name]!r}",
                expected="hidden_act silu, unscaled rotary positions and no sliding window",
                remedy="export a checkpoint without this setting; it is not supported",
            )


def _is_scaled(rope: object) -> bool:
    """Whether rope_scaling, or rope_parameters as newer files call it, asks for more than plain rotary positions."""
    if rope is None:
        return False
    return not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default"


def _dimensions(config: dict[str, Any], path: Path) -> ModelDimensions:
    hidden = _positive(config, "hidden_size", path)
    heads = _positive(config, "num_attention_heads", path)
    kv_heads = _positive(config, "num_key_value_heads", path) if "num_key_value_heads" in config else heads
    head_size = _positive(config, "head_dim", path) if config.get("head_dim") is not None else hidden // heads
    rope = config.get("rope_parameters") or {}
    dimensions = ModelDimensions(
        vocab_size=_positive(config, "vocab_size", path),
        hidden_size=hidden,
        intermediate_size=_positive(config, "intermediate_size", path),
        layers=_positive(config, "num_hidden_layers", path),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        max_positions=_positive(config, "max_position_embeddings", path),
        rope_theta=_positive_number({**config, **rope}, "rope_theta", path),
        rms_norm_eps=_positive_number(config, "rms_norm_eps", path),
    )
    for wrong, expected in (
        (config.get("head_dim") is None and hidden % heads != 0, "hidden_size a multiple of num_attention_heads"),
        (heads % kv_heads != 0, "num_attention_heads a multiple of num_key_value_heads"),
        (head_size % 2 != 0, "an even head size"),
        (dimensions.vocab_size < TOP_K, f"vocab_size at least {TOP_K}"),
    ):
        if wrong:
            raise BadInputError(f"{path}: sizes {dimensions}", expected=expected, remedy=_REMEDY)
    return dimensions


def _token_ids(config: dict[str, Any], path: Path) -> dict[str, int]:
    ids: dict[str, int] = {}
    for name in ("mask", "eos", "pad", "bos"):
        value = config.get(f"{name}_token_id")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadInputError(f"{path} has {name}_token_id = {value!r}", expected="one token id", remedy=_REMEDY)
        ids[name] = value
    return ids


def _flag(config: dict[str, Any], name: str, path: Path) -> bool:
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise BadInputError(f"{path} has {name} = {value!r}", expected="true or false", remedy=_REMEDY)
    return value


def _positive(config: dict[str, Any], name: str, path: Path) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInputError(f"{path} has {name} = {value!r}", expected="a positive whole number", remedy=_REMEDY)
    return value


def _positive_number(config: dict[str, Any], name: str, path: Path) -> float:
    value = config.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise BadInputError(f"{path} has {name} = {value!r}", expected="a positive number", remedy=_REMEDY)
    return float(value)
