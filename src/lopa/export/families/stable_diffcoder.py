"""Stable-DiffCoder-8B: Llama's layers with block-causal attention. Blocks of 4 are aligned to position 0.

Its model_type is the same as for every Llama, so the class in config.json identifies it.
"""

from functools import partial

from lopa.export.families.family import Architecture, Family, block_by_block
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
    decoding=block_by_block(0.95, 4),
)
