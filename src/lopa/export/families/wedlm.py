"""WeDLM, 7B and 8B: the layers of Qwen2.5 or Qwen3 as they are, causal; decided rows of a window come before masks.

config.json says which of the two: `attention_bias` and `qk_norm`, by default Qwen2.5's, and Qwen3's in its own.
"""

from lopa.export.families.family import QWEN3_LAYER, Architecture, Family
from lopa.export.families.sizes import sizes_with_names_of_transformers
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import ModelDimensions


def _sizes(config: JsonValues) -> ModelDimensions:
    values = config.values
    is_qwen3 = values.get("model_type") == "qwen3"
    qkv_bias = config.flag("attention_bias") if values.get("attention_bias") is not None else not is_qwen3
    qk_norm = config.flag("qk_norm") if values.get("qk_norm") is not None else is_qwen3
    return sizes_with_names_of_transformers(config, qkv_bias=qkv_bias, qk_norm=qk_norm)


WEDLM = Family(
    architecture=Architecture("wedlm", prediction_shift=0, layer_names=QWEN3_LAYER),
    published="WeDLM-7B, WeDLM-8B",
    model_type="wedlm",
    classes=("WeDLMForCausalLM",),
    lookalikes=("qwen2", "qwen3"),
    sizes=_sizes,
    mask_id=151665,  # unless given, says its engine
    more_ends=True,
    add_bos=False,
    decoding={"strategy": "threshold", "alignment": "sliding", "window": "causal", "block_size": 16},
)
