"""LLaDA2.0 and 2.1, mini and flash: block-causal attention and experts that a router with groups chooses.

The router's sigmoid scores plus a bias choose groups, then experts. The scores alone weight the experts. A shared
expert computes every row. Half of a head's channels rotate. LLaDA2.1 has the same files as 2.0; its loop also edits
unmasked tokens, which is a decoding option (editing_threshold).
"""

from lopa.export.families.family import EXPERTS, QWEN2_LAYER, Architecture, Family, block_by_block
from lopa.export.families.settings import fixed, rope_settings
from lopa.export.families.sizes import EXPERT_SIZES, MAX_EXPERTS, expert_counts, rope_value
from lopa.export.families.sizes import sizes_from_transformers_names as transformers_sizes
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import MAX_LAYERS, MixtureOfExperts, ModelDimensions

_MAX_SHARED = 64
_QKV = "attention.query_key_value.weight"


def _sizes(config: JsonValues) -> ModelDimensions:
    """Return the dimensions. The first first_k_dense_replace layers are dense.

    num_key_value_heads 0 means as many as attention heads. partial_rotary_factor defaults to 1.
    """
    values = config.values
    layers = config.get_int("num_hidden_layers", max=MAX_LAYERS)
    dense = config.get_int("first_k_dense_replace", min=0) if values.get("first_k_dense_replace") is not None else 0
    expert_size, counts = config.get_int("moe_intermediate_size"), expert_counts(config)
    has_shared = values.get("num_shared_experts") is not None
    moe = MixtureOfExperts(
        **counts,
        expert_size=expert_size,
        shared_size=expert_size * (config.get_int("num_shared_experts", min=0, max=_MAX_SHARED) if has_shared else 0),
        dense_layers=list(range(min(dense, layers))),
        score="sigmoid",
        normalize=counts["experts_per_token"] > 1,  # the reference code does not divide the score of a single expert
        bias=True,
        groups=config.get_int("n_group", max=MAX_EXPERTS),
        groups_per_token=config.get_int("topk_group", max=MAX_EXPERTS),
        scale=config.get_float("routed_scaling_factor", min=1e-6, max=1e6),
    )
    if values.get("num_key_value_heads") == 0:
        config = config.without("num_key_value_heads")
    head_size = config.get_int("head_dim")
    return transformers_sizes(
        config,
        qkv_bias=False,
        qk_norm=True,
        head_dim_needed=True,
        moe=moe,
        partial_rotary_size=_partial_rotary_size(config, head_size),
    )


def _partial_rotary_size(config: JsonValues, head_size: int) -> int | None:
    """Return the number of channels that rotate, or None for all. rotary_dim must agree with partial_rotary_factor."""
    values, factor = config.values, rope_value(config, "partial_rotary_factor")
    size = int(head_size * config.checked_float("partial_rotary_factor", 1 if factor is None else factor, min=0, max=1))
    if size < 2 or size % 2:
        raise config.error_for("partial_rotary_factor", factor, f"an even number of the {head_size} channels of a head")
    if values.get("rotary_dim") is not None and config.get_int("rotary_dim") != size:
        raise config.error_for("rotary_dim", values["rotary_dim"], f"{size}: head_dim times partial_rotary_factor")
    return None if size == head_size else size


LLADA2_MOE = Family(
    architecture=Architecture(
        "llada2-moe",
        prediction_shift=0,
        layer_names=QWEN2_LAYER
        | EXPERTS
        | {
            "attention.query.weight": _QKV,
            "attention.key.weight": _QKV,
            "attention.value.weight": _QKV,
            "attention.output.weight": "attention.dense.weight",
            "attention.query_norm.weight": "attention.query_layernorm.weight",
            "attention.key_norm.weight": "attention.key_layernorm.weight",
            "mlp.router.bias": "mlp.gate.expert_bias",
            "mlp.shared.gate.weight": "mlp.shared_experts.gate_proj.weight",
            "mlp.shared.up.weight": "mlp.shared_experts.up_proj.weight",
            "mlp.shared.down.weight": "mlp.shared_experts.down_proj.weight",
        },
        outer_names={
            "embedding.weight": "model.word_embeddings.weight",
            "final_norm.weight": "model.norm.weight",
            "head.weight": "lm_head.weight",
        },
    ),
    model_names="LLaDA2.0-mini, LLaDA2.0-flash, LLaDA2.1-mini, LLaDA2.1-flash",
    model_type="llada2_moe",
    classes=("LLaDA2MoeModelLM",),
    sizes=_sizes,
    reads=(
        *(*EXPERT_SIZES, "moe_intermediate_size", "num_shared_experts", "first_k_dense_replace", "n_group"),
        *("topk_group", "routed_scaling_factor", "rotary_dim", "partial_rotary_factor"),
    ),
    settings=(
        fixed("use_bias", False, has="projections without biases"),
        fixed("use_qkv_bias", False, has="query, key and value projections without biases"),
        fixed("use_qk_norm", True, has="norms of queries and keys"),
        fixed("using_split_qkv_in_self_attention", False, has="query, key and value in one tensor"),
        fixed("norm_head", False, has="a head without a norm"),
        fixed("norm_softmax", False, has="logits without a norm"),
        fixed("score_function", "sigmoid", has="a router with sigmoid"),
        fixed("norm_topk_prob", True, has="normalized scores"),
        fixed("router_dtype", "fp32", has="a router in float32"),
        fixed("moe_router_enable_expert_bias", True, has="a router with a bias"),
        fixed("_moe_implementation", "eager", "fused", has="an implementation that the tensors do not depend on"),
        fixed("attention_bias", False, has="projections without biases"),
        *rope_settings(partial=True),
        fixed("expert_capacity", has="experts without a capacity"),
    ),
    mask_tokens=("<|mask|>",),
    mask_id=156895,  # default of generate in the reference code of LLaDA2.0
    more_ends=True,
    add_bos=False,
    decoding=block_by_block(0.95, 32),
)
