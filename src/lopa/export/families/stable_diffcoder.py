"""Stable-DiffCoder-8B: Llama's layers made block-causal, blocks of 4 counted from position 0.

Its model_type is that of every Llama; its class in config.json tells it from them.
"""

from functools import partial

from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import sizes_with_names_of_transformers

STABLE_DIFFCODER = Family(
    architecture=Architecture("stable-diffcoder", prediction_shift=0),
    published="Stable-DiffCoder-8B",
    model_type="llama",
    classes=("StableDiffcoderForCausalLM",),
    shares_model_type=True,
    sizes=partial(sizes_with_names_of_transformers, qkv_bias=False, qk_norm=False),
    settings=(
        fixed("attention_bias", False, has="attention without biases"),
        fixed("mlp_bias", False, has="an MLP without biases"),
    ),
    mask_tokens=("<[MASK_TOKEN]>",),
    mask_id=5,  # the default of its generate_block
    more_ends=True,
    add_bos=False,
    decoding={
        "strategy": "threshold",
        "confidence": "probability",
        "skip_threshold": 0.95,
        "alignment": "absolute",
        "block_add_threshold": 1.0,  # it was trained on decided blocks before the one it decides
        "window": "block_causal",
        "block_size": 4,
    },
)
