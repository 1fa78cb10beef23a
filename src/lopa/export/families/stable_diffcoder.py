"""Stable-DiffCoder-8B: Llama's layers with block-causal attention. Blocks of 4 are aligned to position 0.

Its model_type is the same as for every Llama, so the class in config.json identifies it.
"""

from functools import partial

from lopa.export.families.family import Architecture, Family
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import sizes_from_transformers_names

STABLE_DIFFCODER = Family(
    architecture=Architecture("stable-diffcoder", prediction_shift=0),
    model_names="Stable-DiffCoder-8B",
    model_type="llama",
    classes=("StableDiffcoderForCausalLM",),
    shares_model_type=True,
    sizes=partial(sizes_from_transformers_names, qkv_bias=False, qk_norm=False),
    settings=(
        fixed("attention_bias", False, has="attention without biases"),
        fixed("mlp_bias", False, has="an MLP without biases"),
    ),
    mask_tokens=("<[MASK_TOKEN]>",),
    mask_id=5,  # default of generate_block in the reference code
    more_ends=True,
    add_bos=False,
    decoding={
        "strategy": "threshold",
        "confidence": "probability",
        "skip_threshold": 0.95,
        "alignment": "absolute",
        "block_add_threshold": 1.0,  # trained with all previous blocks unmasked
        "attention": "block_causal",
        "block_size": 4,
    },
)
