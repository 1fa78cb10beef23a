"""Dream-7B, Dream-Coder and DiffuCoder: Qwen2's layers without the causal mask; rows predict the next position.

DiffuCoder has Dream's model_type. All of them are decoded in blocks, as their D2F adapters were trained. DreamOn also
has a token that lengthens holes.
"""

from functools import partial

from lopa.export.families.family import Architecture, Family
from lopa.export.families.sizes import sizes_from_transformers_names

DREAM = Family(
    architecture=Architecture("dream", prediction_shift=1),
    model_names="Dream-7B, DreamOn, DiffuCoder",
    model_type="Dream",
    classes=("DreamModel",),
    lookalikes=("qwen2",),
    sizes=partial(sizes_from_transformers_names, qkv_bias=True, qk_norm=False),
    expand_tokens=("<|expand|>",),
    add_bos=True,
    decoding={},
)
