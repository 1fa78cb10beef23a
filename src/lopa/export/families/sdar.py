"""SDAR, the dense ones (1.7B, 4B, 8B): Qwen3's layers made block-causal, blocks counted from position 0.

A head has a size of its own (head_dim), and queries and keys are normalized.
"""

from functools import partial

from lopa.export.families.family import QWEN3_LAYER, Architecture, Family
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import sizes_with_names_of_transformers

SDAR = Family(
    architecture=Architecture("sdar", prediction_shift=0, layer_names=QWEN3_LAYER),
    published="SDAR-1.7B-Chat to SDAR-8B-Chat",
    model_type="sdar",
    classes=("SDARForCausalLM",),
    lookalikes=("qwen3",),
    sizes=partial(sizes_with_names_of_transformers, qkv_bias=False, qk_norm=True, head_dim_needed=True),
    settings=(fixed("attention_bias", False, has="attention without biases"),),
    block_size="block_size",
    more_ends=True,
    add_bos=False,
    decoding={
        "strategy": "threshold",
        "confidence": "probability",
        "skip_threshold": 0.85,
        "alignment": "absolute",
        "block_add_threshold": 1.0,  # it was trained on decided blocks before the one it decides
        "window": "block_causal",
        "block_size": 4,
    },
)
