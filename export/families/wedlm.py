"""WeDLM, 7B and 8B: the layers of Qwen2.5 or Qwen3 as they are, causal; decided rows of a window come before masks.

config.json says which of the two: `attention_bias` and `qk_norm`, by default Qwen2.5's.
"""

from lopa.export.families.family import QWEN3_LAYER, Architecture, Family
from lopa.export.families.sizes import sizes_with_names_of_transformers
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import ModelDimensions


def _sizes(config: JsonValues) -> ModelDimensions:
    has_bias = config.values.get("attention_bias") is None or config.flag("attention_bias")
    return sizes_with_names_of_transformers(config, qkv_bias=has_bias, qk_norm=config.flag("qk_norm"))


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
    # A window of 16, of which the decided run in front leaves.
    decoding={"strategy": "sliding", "alignment": "absolute", "window": "causal", "block_size": 16},
)
