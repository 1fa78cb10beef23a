"""SDAR-30B-A3B: SDAR with Qwen3-MoE's layers. The router's softmax chooses experts, without groups or a bias."""

from lopa.export.families.family import EXPERTS, QWEN3_LAYER, Architecture, Family
from lopa.export.families.sdar import SDAR
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import EXPERT_SIZES, expert_counts, sizes_from_transformers_names
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import MAX_LAYERS, MixtureOfExperts, ModelDimensions


def _sizes(config: JsonValues) -> ModelDimensions:
    """Return the dimensions. A layer is dense if mlp_only_layers lists it or decoder_sparse_step skips it."""
    values = config.values
    layers = config.get_int("num_hidden_layers", max=MAX_LAYERS)
    step = config.get_int("decoder_sparse_step") if values.get("decoder_sparse_step") is not None else 1
    dense = config.get_ints("mlp_only_layers", max_count=MAX_LAYERS)
    moe = MixtureOfExperts(
        **expert_counts(config),
        expert_size=config.get_int("moe_intermediate_size"),
        dense_layers=[i for i in range(layers) if i in dense or (i + 1) % step],
        score="softmax",
        normalize=config.get_bool("norm_topk_prob"),
    )
    return sizes_from_transformers_names(config, qkv_bias=False, qk_norm=True, head_dim_needed=True, moe=moe)


SDAR_MOE = Family(
    architecture=Architecture("sdar-moe", prediction_shift=0, layer_names=QWEN3_LAYER | EXPERTS),
    model_names="SDAR-30B-A3B",
    model_type="sdar_moe",
    classes=("SDARMoeForCausalLM",),
    lookalikes=("qwen3_moe",),
    sizes=_sizes,
    reads=(*EXPERT_SIZES, "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"),
    settings=(*SDAR.settings, fixed("shared_expert_intermediate_size", 0, has="no shared expert")),
    block_size="block_size",
    adapter_folder=SDAR.adapter_folder,
    more_ends=True,
    add_bos=False,
    decoding=SDAR.decoding,
)
