"""torch types by the names that bundles use."""

import torch

from lopa.export.weights.plan import Dtype

TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
