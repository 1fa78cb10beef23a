"""Weights in the layout of transformers' networks, which stack experts and have separate query, key and value.

The module is independent of lopa.export.weights.plan, whose bundles it checks.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

_FUSED = ".self_attn.qkv_proj."
_EXPERT = re.compile(r"(?P<experts>.+\.mlp\.experts)\.(?P<number>\d+)\.(?P<part>gate_proj|up_proj|down_proj)\.weight")
Sizes = tuple[int, int, int]
"""Attention heads, key-value heads and the size of a head."""


def weights_in_layout(weights: Mapping[str, Tensor], sizes: Sizes) -> dict[str, Tensor]:
    """Return `weights`, which have transformers' names, with experts stacked and query, key and value split.

    A tensor qkv_proj becomes q_proj, k_proj and v_proj. Tensors experts.N.gate_proj, up_proj and down_proj become
    gate_up_proj, [experts, gate and up, inputs], and down_proj. Raises KeyError if an expert lacks a tensor.
    """
    arranged: dict[str, Tensor] = {}
    experts: dict[str, dict[int, dict[str, Tensor]]] = defaultdict(lambda: defaultdict(dict))
    for name, tensor in weights.items():
        expert = _EXPERT.fullmatch(name)
        if expert is not None:
            experts[expert["experts"]][int(expert["number"])][expert["part"]] = tensor
        elif _FUSED in name:
            heads, kv_heads, size = sizes
            parts = tensor.split([heads * size, kv_heads * size, kv_heads * size])
            for part, values in zip(("q_proj", "k_proj", "v_proj"), parts, strict=True):
                arranged[name.replace("qkv_proj", part)] = values
        else:
            arranged[name] = tensor
    for name, numbered in experts.items():
        group = [numbered[number] for number in range(len(numbered))]
        arranged[f"{name}.gate_up_proj"] = torch.stack([torch.cat([e["gate_proj"], e["up_proj"]]) for e in group])
        arranged[f"{name}.down_proj"] = torch.stack([each["down_proj"] for each in group])
    return arranged
