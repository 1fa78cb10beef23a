"""Fast-dLLM v2, 7B and 1.5B: Qwen2.5 made block-causal, blocks counted from position 0, filled by sub-blocks."""

from functools import partial

from lopa.export.families.family import Architecture, Family
from lopa.export.families.sizes import sizes_with_names_of_transformers

FAST_DLLM_V2 = Family(
    architecture=Architecture("fast-dllm-v2", prediction_shift=1),
    published="Fast_dLLM_v2_7B, Fast_dLLM_v2_1.5B",
    model_type="Fast_dLLM_Qwen",
    classes=("Fast_dLLM_QwenForCausalLM",),
    lookalikes=("qwen2",),
    sizes=partial(sizes_with_names_of_transformers, qkv_bias=True, qk_norm=False),
    block_size="bd_size",
    # config.json does not have it; 151665 in the published tokenizers.
    mask_tokens=("|<MASK>|",),
    more_ends=True,
    add_bos=False,
    decoding={
        "strategy": "threshold",
        "confidence": "probability",
        "skip_threshold": 0.9,
        "alignment": "absolute",
        "block_add_threshold": 1.0,  # it was trained on decided blocks before the one it decides
        "window": "block_causal",
        "block_size": 32,
        "sub_block": 8,
    },
)
