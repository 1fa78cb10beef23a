"""Sizes of a network from config.json under transformers' names, and checks of any sizes."""

from typing import Any

from lopa.export.json_file import JsonValues, shown
from lopa.runtime.bundle.manifest import MAX_LAYERS, ModelDimensions
from lopa.runtime.bundle.manifest_checks import reasons_against_network
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError

MAX_EXPERTS = 4096
TRANSFORMERS_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rope_theta", "rms_norm_eps"),
)
"""Entries that sizes_from_transformers_names reads."""
EXPERT_SIZES = ("num_experts", "num_local_experts", "num_experts_per_tok", *TRANSFORMERS_SIZES)
"""Entries that expert_counts and sizes_from_transformers_names read."""


def sizes_from_transformers_names(
    config: JsonValues,
    *,
    qkv_bias: bool,
    qk_norm: bool,
    head_dim_needed: bool = False,
    intermediate_size: str = "intermediate_size",
    **more: Any,
) -> ModelDimensions:
    """Return the dimensions of a Qwen2, Qwen3 or Llama network.

    Without `head_dim` the heads share the hidden size. With `head_dim_needed` this is an error. `intermediate_size` is
    the entry for the size of a dense MLP. `more` are further fields of ModelDimensions. Raises BadInputError for values
    that are missing, of another type or inconsistent.
    """
    values = config.values
    hidden = config.get_int("hidden_size")
    heads = config.get_int("num_attention_heads")
    has_head_dim = head_dim_needed or values.get("head_dim") is not None
    return checked_sizes(
        config,
        ("hidden_size", "num_attention_heads", "num_key_value_heads"),
        heads_share_hidden=not has_head_dim,
        vocab_size=vocabulary(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.get_int(intermediate_size),
        layers=config.get_int("num_hidden_layers", max=MAX_LAYERS),
        heads=heads,
        kv_heads=config.get_int("num_key_value_heads") if "num_key_value_heads" in values else heads,
        head_size=config.get_int("head_dim") if has_head_dim else hidden // heads,
        max_positions=config.get_int("max_position_embeddings"),
        rope_theta=rope_theta(config),
        rms_norm_eps=rms_norm_eps(config),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        **more,
    )


def vocabulary(config: JsonValues, name: str) -> int:
    """Return a number of tokens, at least TOP_K, since a step uses the best TOP_K of them."""
    return config.get_int(name, min=TOP_K)


def expert_counts(config: JsonValues) -> dict[str, Any]:
    """Return the numbers of experts and of those per token. transformers 5 saves num_experts as num_local_experts."""
    first, second = (config.values.get(name) for name in EXPERT_SIZES[:2])
    if first is not None and second is not None and first != second:
        raise config.error_for(EXPERT_SIZES[1], second, f"{EXPERT_SIZES[0]}, {shown(first)}")
    return {
        "experts": config.get_int(EXPERT_SIZES[first is None and second is not None], max=MAX_EXPERTS),
        "experts_per_token": config.get_int("num_experts_per_tok", max=MAX_EXPERTS),
    }


def rope_theta(config: JsonValues) -> float:
    """Return the base of rotary positions. Its name is the same in all families."""
    return config.checked_float("rope_theta", rope_value(config, "rope_theta"), min=1.0, max=1e12)


def rope_value(config: JsonValues, name: str) -> object:
    """Return an entry for rotary positions as transformers 5 reads it, or None.

    rope_scaling replaces rope_parameters. The one in use precedes the file's top level.
    """
    values = config.values
    value = (values.get("rope_scaling") or values.get("rope_parameters") or {}).get(name)
    return values.get(name) if value is None else value


def rms_norm_eps(config: JsonValues) -> float:
    """Return the epsilon of norms. Its name is the same in all families."""
    return config.get_float("rms_norm_eps", min=1e-15, max=0.1)


def checked_sizes(
    config: JsonValues, names: tuple[str, str, str], *, heads_share_hidden: bool, **sizes: Any
) -> ModelDimensions:
    """Return the dimensions of `sizes`. Raises BadInputError for inconsistent ones.

    `names` are the entries of config.json for the hidden size, heads and key-value heads. With `heads_share_hidden` the
    width of all heads together is the hidden size.
    """
    dimensions = ModelDimensions(**sizes)
    hidden, heads, kv_heads = names
    for wrong, expected in (
        (heads_share_hidden and dimensions.hidden_size % dimensions.heads, f"{hidden} a multiple of {heads}"),
        (dimensions.heads % dimensions.kv_heads, f"{heads} a multiple of {kv_heads}"),
        (dimensions.head_size < 2 or dimensions.head_size % 2, "an even head size"),
    ):
        if wrong:
            raise BadInputError(
                f"{config.source} has wrong sizes: {dimensions}", expected=expected, remedy=config.remedy
            )
    for received, expected in reasons_against_network(dimensions):
        raise BadInputError(f"{config.source} has {received}", expected=expected, remedy=config.remedy)
    return dimensions
