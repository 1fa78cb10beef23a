"""Dream-7B, Dream-Coder and DiffuCoder: Qwen2's layers without the causal mask, whose rows speak of the next position.

DiffuCoder has Dream's model_type. Decoded by blocks, for which their D2F adapters train them.
"""

from functools import partial

from lopa.export.families.family import Architecture, Family
from lopa.export.families.sizes import sizes_with_names_of_transformers

DREAM = Family(
    architecture=Architecture("dream", prediction_shift=1),
    published="Dream-7B, DiffuCoder",
    model_type="Dream",
    classes=("DreamModel",),
    lookalikes=("qwen2",),
    sizes=partial(sizes_with_names_of_transformers, qkv_bias=True, qk_norm=False),
    add_bos=True,
    decoding={},
)
