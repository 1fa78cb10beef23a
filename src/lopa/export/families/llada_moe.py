"""LLaDA-MoE-7B-A1B: full attention and experts that a softmax chooses. Its scores are not normalized.

Its model_type is the same as for dense LLaDA, so the class or `num_experts` in config.json identifies it.
"""

from lopa.export.families.family import EXPERTS, QWEN3_LAYER, Architecture, Family
from lopa.export.families.llada import LLADA
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import EXPERT_SIZES, expert_counts, sizes_from_transformers_names
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import MAX_LAYERS, MixtureOfExperts, ModelDimensions


def _sizes(config: JsonValues) -> ModelDimensions:
    """Return the dimensions. A layer is dense if moe_layer_freq has 0 for it."""
    layers = config.get_int("num_hidden_layers", max=MAX_LAYERS)
    frequencies = config.get_ints("moe_layer_freq", max_count=MAX_LAYERS, max=1)
    if len(frequencies) != layers:
        raise config.error_for("moe_layer_freq", frequencies, f"a list of {layers} numbers, 0 or 1 for each layer")
    dense_layers = [i for i, sparse in enumerate(frequencies) if not sparse]
    moe = MixtureOfExperts(
        **expert_counts(config),
        expert_size=config.get_int("expert_intermediate_size"),
        dense_layers=dense_layers,
        score="softmax",
        normalize=False,
    )
    return sizes_from_transformers_names(
        config,
        qkv_bias=False,
        qk_norm=config.get_bool("qk_layernorm"),
        intermediate_size="dense_intermediate_size" if dense_layers else "expert_intermediate_size",
        moe=moe,
    )


LLADA_MOE = Family(
    architecture=Architecture("llada-moe", prediction_shift=0, layer_names=QWEN3_LAYER | EXPERTS),
    model_names="LLaDA-MoE-7B-A1B",
    model_type="llada",
    other_model_types=("lladamoe", "llada_moe"),
    marker="num_experts",
    classes=("LLaDAMoEModelLM", "LLaDAMoEModel"),
    sizes=_sizes,
    reads=(*(*EXPERT_SIZES, "moe_layer_freq", "qk_layernorm", "expert_intermediate_size", "dense_intermediate_size"),),
    settings=(
        fixed("attention_bias", False, has="attention without biases"),
        fixed("clip_qkv", has="unclipped queries, keys and values"),
        fixed("moe_router_score_function", "softmax", has="a router with softmax"),
        fixed("moe_router_enable_expert_bias", False, has="a router without a bias"),
        fixed("routed_scaling_factor", 1, 1.0, has="unscaled experts"),
        fixed("router_num_group", 0, 1, has="a router without groups"),
        fixed("router_topk_group", 0, 1, has="a router without groups"),
        fixed("shared_expert_intermediate_size", 0, has="no shared expert"),
        fixed("num_shared_experts", 0, has="no shared expert"),
        fixed("decoder_sparse_step", 1, has="dense layers named by moe_layer_freq"),
        fixed("mlp_only_layers", [], has="dense layers named by moe_layer_freq"),
    ),
    mask_tokens=("<|mask|>",),
    mask_id=156895,  # default of generate in the reference code
    add_bos=False,
    decoding=LLADA.decoding,
)
