"""Fast-dLLM v2, 7B and 1.5B: Qwen2.5 with block-causal attention and sub-blocks. Blocks are aligned to position 0."""

from functools import partial

from lopa.export.families.family import Architecture, Family, block_by_block
from lopa.export.families.sizes import sizes_from_transformers_names

FAST_DLLM_V2 = Family(
    architecture=Architecture("fast-dllm-v2", prediction_shift=1),
    model_names="Fast_dLLM_v2_7B, Fast_dLLM_v2_1.5B",
    model_type="Fast_dLLM_Qwen",
    classes=("Fast_dLLM_QwenForCausalLM",),
    lookalikes=("qwen2",),
    sizes=partial(sizes_from_transformers_names, qkv_bias=True, qk_norm=False),
    block_size="bd_size",
    # config.json does not name the mask token. Its id is 151665 in the published tokenizers.
    mask_tokens=("|<MASK>|",),
    more_ends=True,
    add_bos=False,
    decoding=block_by_block(0.9, 32, sub_block=8),
)
