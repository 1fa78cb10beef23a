"""Values of the matrices that GPTQ or AWQ packed, by the formulas of AutoGPTQ and AutoAWQ.

transformers needs GPTQModel for such checkpoints, which no index offers for CPUs. The module is simple and independent
of lopa.export.checkpoint.packed_weights, whose results it checks. transformers reads the configuration.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AwqConfig, GPTQConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import get_checkpoint_shard_files

_PARTS = ("qweight", "qzeros", "scales", "g_idx")
_LAYOUTS = {"gptq": 1, "gptq_v2": 0, "gemm": 0}
"""Number that is added to a stored zero point, by the layout's name in transformers."""


def unpacked_weights(checkpoint: Path, packing: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return all tensors of a checkpoint, the packed ones as float32 matrices [outputs, inputs].

    `packing` is config.json's quantization_config. Files are chosen as transformers does: model.safetensors, or else
    the shards of the index in their order. Raises ValueError for another layout.
    """
    is_awq = packing.get("quant_method") == "awq"
    config = (AwqConfig if is_awq else GPTQConfig).from_dict(packing)
    layout = str(getattr(config.format, "value", config.format))
    if layout not in _LAYOUTS or is_awq != (layout == "gemm"):
        raise ValueError(f"the packing {layout}")
    single, index = checkpoint / SAFE_WEIGHTS_NAME, checkpoint / SAFE_WEIGHTS_INDEX_NAME
    shards = [single] if single.is_file() else get_checkpoint_shard_files(checkpoint, index, local_files_only=True)[0]
    stored = {name: tensor for path in shards for name, tensor in load_file(path).items()}
    for module in [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]:
        parts = {part: stored.pop(f"{module}.{part}").numpy() for part in _PARTS if f"{module}.{part}" in stored}
        matrix = _matrix(parts, config.bits, _LAYOUTS[layout], is_awq=is_awq)
        stored[f"{module}.weight"] = torch.from_numpy(np.ascontiguousarray(matrix.T, np.float32))
    return stored


def _matrix(parts: dict[str, np.ndarray], bits: int, offset: int, *, is_awq: bool) -> np.ndarray:
    """Return the values [inputs, outputs] in float64."""
    # A number's place in its word: in order, or for AWQ the even ones first.
    places = [0, 4, 1, 5, 2, 6, 3, 7] if is_awq else range(32 // bits)

    def numbers(words: np.ndarray) -> np.ndarray:
        """Return the numbers of each word along a new last axis."""
        return np.stack([words.view(np.uint32) >> np.uint32(bits * each) & (2**bits - 1) for each in places], -1)

    words, scales = parts["qweight"], parts["scales"].astype(np.float64)
    values = numbers(words)
    values = values.reshape(len(words), -1) if is_awq else values.transpose(0, 2, 1).reshape(-1, words.shape[1])
    zeros = numbers(parts["qzeros"]).reshape(len(scales), -1).astype(np.float64) + offset
    groups = parts.get("g_idx", np.arange(len(values)) // (len(values) // len(scales)))
    found: np.ndarray = (values - zeros[groups]) * scales[groups]
    return found
