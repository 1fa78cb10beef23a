"""Dense SDAR (1.7B, 4B, 8B): Qwen3's layers with block-causal attention. Blocks are aligned to position 0.

The head size is set by head_dim, and queries and keys are normalized.
"""

from functools import partial

from lopa.export.families.family import QWEN3_LAYER, Architecture, Family, block_by_block
from lopa.export.families.settings import Setting, fixed
from lopa.export.families.sizes import sizes_from_transformers_names


def _is_block_size(value: object) -> bool:
    return type(value) is int and value >= 4


SDAR = Family(
    architecture=Architecture("sdar", prediction_shift=0, layer_names=QWEN3_LAYER),
    model_names="SDAR-1.7B-Chat to SDAR-8B-Chat",
    model_type="sdar",
    classes=("SDARForCausalLM",),
    lookalikes=("qwen3",),
    sizes=partial(sizes_from_transformers_names, qkv_bias=False, qk_norm=True, head_dim_needed=True),
    settings=(
        fixed("attention_bias", False, has="attention without biases"),
        Setting("block_size", "blocks of 4 or more; Uno and I-DLM are causal, with blocks of 1 to 3", _is_block_size),
    ),
    block_size="block_size",
    adapter_folder="Uno, which is causal and drafts with this adapter",
    more_ends=True,
    add_bos=False,
    decoding=block_by_block(0.85, 4),
)
