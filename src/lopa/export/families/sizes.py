"""Sizes of a network from config.json with the names of transformers, and what is checked of any sizes."""

from typing import Any

from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import MAX_LAYERS, ModelDimensions
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError


def sizes_with_names_of_transformers(
    config: JsonValues, *, qkv_bias: bool, qk_norm: bool, head_dim_needed: bool = False
) -> ModelDimensions:
    """Of Qwen2, Qwen3 or Llama; without `head_dim` a head is its share of the hidden size, unless it is needed.

    Raises BadInputError for a value that is missing, of another type, or that does not go with the others.
    """
    values = config.values
    hidden = config.check_int("hidden_size")
    heads = config.check_int("num_attention_heads")
    has_head_dim = head_dim_needed or values.get("head_dim") is not None
    # Newer files have rope_theta among the rope_parameters; check_settings has seen that these are an object.
    rope = JsonValues({**values, **(values.get("rope_parameters") or {})}, config.source, config.remedy)
    return checked_sizes(
        config,
        ("hidden_size", "num_attention_heads", "num_key_value_heads"),
        heads_share_hidden=not has_head_dim,
        vocab_size=vocabulary(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.check_int("intermediate_size"),
        layers=config.check_int("num_hidden_layers", max=MAX_LAYERS),
        heads=heads,
        kv_heads=config.check_int("num_key_value_heads") if "num_key_value_heads" in values else heads,
        head_size=config.check_int("head_dim") if has_head_dim else hidden // heads,
        max_positions=config.check_int("max_position_embeddings"),
        rope_theta=rope_theta(rope),
        rms_norm_eps=rms_norm_eps(config),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )


def vocabulary(config: JsonValues, name: str) -> int:
    """A number of tokens; a step takes the best TOP_K of them."""
    return config.check_int(name, min=TOP_K)


def rope_theta(config: JsonValues) -> float:
    """The base of rotary positions, which every family calls the same."""
    return config.number("rope_theta", min=1.0, max=1e12)


def rms_norm_eps(config: JsonValues) -> float:
    """What norms add to the mean square, which every family calls the same."""
    return config.number("rms_norm_eps", min=1e-15, max=0.1)


def checked_sizes(
    config: JsonValues, called: tuple[str, str, str], *, heads_share_hidden: bool, **sizes: Any
) -> ModelDimensions:
    """ModelDimensions of `sizes`, which raises BadInputError where they do not go together.

    `called` are the hidden size, heads and key-value heads in config.json. With `heads_share_hidden` all heads together
    are as wide as the hidden size.
    """
    dimensions = ModelDimensions(**sizes)
    hidden, heads, kv_heads = called
    for wrong, expected in (
        (heads_share_hidden and dimensions.hidden_size % dimensions.heads, f"{hidden} a multiple of {heads}"),
        (dimensions.heads % dimensions.kv_heads, f"{heads} a multiple of {kv_heads}"),
        (dimensions.head_size < 2 or dimensions.head_size % 2, "an even head size"),
    ):
        if wrong:
            raise BadInputError(f"{config.source}: sizes {dimensions}", expected=expected, remedy=config.remedy)
    return dimensions
