"""WeDLM, 7B and 8B: unchanged causal layers of Qwen2.5 or Qwen3.

Unmasked rows of a window precede masked ones. `attention_bias` and `qk_norm` in config.json distinguish Qwen2.5 from
Qwen3. Their defaults depend on model_type.
"""

from lopa.export.families.family import QWEN3_LAYER, Architecture, Family
from lopa.export.families.settings import fixed
from lopa.export.families.sizes import TRANSFORMERS_SIZES, sizes_from_transformers_names
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import ModelDimensions


def _sizes(config: JsonValues) -> ModelDimensions:
    values = config.values
    is_qwen3 = values.get("model_type") == "qwen3"
    qkv_bias = config.get_bool("attention_bias") if values.get("attention_bias") is not None else not is_qwen3
    qk_norm = config.get_bool("qk_norm") if values.get("qk_norm") is not None else is_qwen3
    return sizes_from_transformers_names(config, qkv_bias=qkv_bias, qk_norm=qk_norm)


WEDLM = Family(
    architecture=Architecture("wedlm", prediction_shift=0, layer_names=QWEN3_LAYER),
    model_names="WeDLM-7B, WeDLM-8B",
    model_type="wedlm",
    classes=("WeDLMForCausalLM",),
    lookalikes=("qwen2", "qwen3"),
    sizes=_sizes,
    reads=(*TRANSFORMERS_SIZES, "attention_bias", "qk_norm"),
    settings=(*(fixed(name, True, has="causal attention") for name in ("is_causal", "use_regular_causal")),),
    mask_id=151665,  # default of WeDLM's engine
    more_ends=True,
    add_bos=False,
    decoding={"strategy": "threshold", "alignment": "sliding", "attention": "causal", "block_size": 16},
)
