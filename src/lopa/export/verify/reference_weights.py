"""Float32 weights of a checkpoint with its adapter merged, under the checkpoint's names.

The module is simple and independent of lopa.export.checkpoint.tensors and lopa.export.checkpoint.lora, whose results it
checks. It expects files that an export has accepted. Its errors for other files are not helpful.
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file

_KEY_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


def weights_from_files(checkpoint_files: Iterable[Path], lora: Path | None) -> dict[str, torch.Tensor]:
    """Return every tensor of the safetensors files in float32, merged with the PEFT adapter in the folder `lora`."""
    weights = {name: tensor.float() for path in checkpoint_files for name, tensor in load_file(path).items()}
    if lora is not None:
        weights.update(_changed_weights(weights, lora))
    return weights


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
