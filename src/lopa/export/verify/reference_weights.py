"""Float32 weights of a checkpoint with its adapter merged, under the checkpoint's names.

The module is simple and independent of lopa.export.checkpoint.tensors and lopa.export.checkpoint.lora, whose results it
checks. It expects files that an export has accepted. Its errors for other files are not helpful.
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

_KEY_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


def weights_from_files(checkpoint_files: Iterable[Path], lora: Path | None) -> dict[str, torch.Tensor]:
    """Return every tensor of the safetensors files in float32, merged with the PEFT adapter in the folder `lora`."""
    files = list(checkpoint_files)
    stored = {name: tensor for path in files for name, tensor in load_file(path).items()}
    weights = {name: tensor.float() for name, tensor in _with_unpacked(stored, files[0].parent).items()}
    if lora is not None:
        weights.update(_changed_weights(weights, lora))
    return weights


def _with_unpacked(stored: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """Return `stored` with the values of matrices that GPTQ or AWQ packed, [outputs, inputs] in float64."""
    modules = [name.removesuffix(".qweight") for name in stored if name.endswith(".qweight")]
    if not modules:
        return stored
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    bits, is_awq = config.get("bits", 4), config["quant_method"] == "awq"
    offset = 0 if is_awq or config.get("checkpoint_format") == "gptq_v2" else 1
    found = {name: tensor for name, tensor in stored.items() if name.rpartition(".")[0] not in modules}
    for module in modules:
        words, zeros, scales = (stored[f"{module}.{part}"].numpy() for part in ("qweight", "qzeros", "scales"))
        # A number's place in its word: in order, or for AWQ the even ones first.
        places = [0, 4, 1, 5, 2, 6, 3, 7] if is_awq else list(range(32 // bits))

        def numbers(array: np.ndarray, places: list[int] = places) -> np.ndarray:
            """Return the numbers of each word along a new last axis."""
            return np.stack([array.view(np.uint32) >> np.uint32(bits * each) & (2**bits - 1) for each in places], -1)

        values = numbers(words)
        values = values.reshape(len(words), -1) if is_awq else values.transpose(0, 2, 1).reshape(-1, words.shape[1])
        zero_points = numbers(zeros).reshape(len(zeros), -1).astype(np.float64) + offset
        groups = np.arange(len(values)) // (len(values) // len(scales))
        if f"{module}.g_idx" in stored:
            groups = stored[f"{module}.g_idx"].numpy()
        matrix = (values - zero_points[groups]) * scales.astype(np.float64)[groups]
        found[f"{module}.weight"] = torch.from_numpy(np.ascontiguousarray(matrix.T))
        if f"{module}.bias" in stored:
            found[f"{module}.bias"] = stored[f"{module}.bias"]
    return found


def _changed_weights(weights: dict[str, torch.Tensor], lora: Path) -> dict[str, torch.Tensor]:
    """Return the tensors that the adapter changes: W + scale * B @ A in float64, or complete new ones."""
    config = json.loads((lora / "adapter_config.json").read_text(encoding="utf-8"))
    stored = {
        name.removeprefix(_KEY_PREFIX): tensor for name, tensor in load_file(lora / "adapter_model.safetensors").items()
    }
    changed = {}
    for name, tensor in stored.items():
        if name.endswith(_DOWN):
            module = name.removesuffix(_DOWN)
            down, up, base = tensor.double(), stored[module + _UP].double(), weights[f"{module}.weight"].double()
            changed[f"{module}.weight"] = (base + _scale(config, module, rank=len(down)) * (up @ down)).float()
        elif not name.endswith(_UP):
            changed[name] = tensor.float()
    return changed


def _scale(config: dict[str, object], module: str, *, rank: int) -> float:
    alpha = config["lora_alpha"]
    patterns = config.get("alpha_pattern") or {}
    assert isinstance(patterns, dict)
    for pattern, value in patterns.items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = value
            break
    assert isinstance(alpha, int | float)
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
