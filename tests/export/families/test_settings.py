"""Settings of config.json that no network supports are rejected by name, family by family."""

from pathlib import Path
from typing import Any

import pytest
from tests.export.families.test_config_fields import write_config
from tests.tools.miniature import MINIATURES

from lopa.export.checkpoint.config import config_from_checkpoint
from lopa.runtime.errors import BadInputError

OF_ALL: dict[str, list[Any]] = {
    "hidden_act": ["gelu", "swiglu", 1],
    "rope_scaling": [{"rope_type": "yarn", "factor": 4.0}, {"type": "linear", "factor": 2.0}, 2.0],
    "rope_parameters": [
        {"rope_type": "llama3", "rope_theta": 1e4},
        {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ],
    "partial_rotary_factor": [0.5, "1"],
    "use_sliding_window": [True, "no"],
    "layer_types": [["full_attention", "sliding_attention"], "full_attention", 5, {"a": 1}, [None]],
    "num_experts": [8, [8]],
    "num_local_experts": [8],
    "n_routed_experts": [8],
    "num_experts_per_tok": [2],
    "moe_intermediate_size": [32],
}
OF_FAMILIES: dict[str, dict[str, list[Any]]] = {
    "llada": {
        "alibi": [True, 0],
        "block_type": ["sequential", None, ...],
        "layer_norm_type": ["default", "low_precision", "gemma_rms", None, ...],
        "activation_type": ["swiglu", "gelu", None, ...],
        "rope": [False, None, ...],
        "include_bias": [True, None, ...],
        "block_group_size": [2, True],
        "clip_qkv": [8.0],
    },
    "llada2-moe": {"_moe_implementation": ["other"], "expert_capacity": [48]},
    "sdar-moe": {"shared_expert_intermediate_size": [64]},
}
"""Values beside those of test_every_field.py, and absent entries that are refused."""
NEUTRAL: list[dict[str, Any]] = [
    {"hidden_act": None},
    {"rope_scaling": {"rope_type": "default"}},
    {"partial_rotary_factor": 1.0},
    {"use_sliding_window": False, "sliding_window": 4096},
    {"layer_types": ["full_attention", "full_attention"]},
    {"num_experts": 0},
]
_EXPERTS = ("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size")
READ = {
    "llada2-moe": ("partial_rotary_factor", "rope_parameters", *_EXPERTS),
    "sdar-moe": _EXPERTS,
    "llada-moe": ("num_experts", "num_local_experts", "num_experts_per_tok"),
}
"""Entries of all families that a family reads as sizes."""


@pytest.mark.parametrize("family", MINIATURES)
def test_unsupported_settings_are_named(tmp_path: Path, family: str) -> None:
    for name, values in {**OF_ALL, **OF_FAMILIES.get(family, {})}.items():
        for value in () if name in READ.get(family, ()) else values:
            write_config(tmp_path, family, **{name: value})
            with pytest.raises(BadInputError, match=rf"config\.json has {name} = ") as caught:
                config_from_checkpoint(tmp_path)
            assert "not supported" in caught.value.remedy


@pytest.mark.parametrize("family", MINIATURES)
def test_absent_and_neutral_settings_are_accepted(tmp_path: Path, family: str) -> None:
    """An absent setting is allowed unless it is listed as refused."""
    for name, values in OF_FAMILIES.get(family, {}).items():
        for absent in () if ... in values else (None, ...):
            write_config(tmp_path, family, **{name: absent})
            config_from_checkpoint(tmp_path)
    for harmless in NEUTRAL:
        if harmless.keys().isdisjoint(READ.get(family, ())):
            write_config(tmp_path, family, **harmless)
            assert config_from_checkpoint(tmp_path).dimensions == MINIATURES[family].dimensions
