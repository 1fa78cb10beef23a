"""Mapping of a checkpoint's settings and tensor names to the settings and names of transformers' networks.

The module is independent of the families of lopa.export.checkpoint, which it checks. Most checkpoints have
transformers' names.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]
"""Content of a config.json."""

_SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_parameters",
    "tie_word_embeddings",
)
_QWEN3_MOE = (
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    *("decoder_sparse_step", "mlp_only_layers"),
)
_LLADA2_MODULES = {
    "model.word_embeddings.": "model.embed_tokens.",
    ".attention.query_layernorm.": ".self_attn.q_norm.",
    ".attention.key_layernorm.": ".self_attn.k_norm.",
    ".attention.query_key_value.": ".self_attn.qkv_proj.",
    ".attention.dense.": ".self_attn.o_proj.",
    ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
}
_LLADA_BLOCK_MODULES = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
_LLADA_OUTER_MODULES = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
_LLADA_TENSOR = re.compile(r"model\.transformer\.(?:blocks\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


@dataclass(frozen=True)
class Names:
    """Mapping of the names in one kind of checkpoint to transformers' names."""

    embedding: str
    head: str
    """Tensor that a checkpoint with tied embeddings lacks."""
    tensor: Callable[[str], str]
    """Function from the checkpoint's tensor name to transformers'; unknown names stay unchanged.

    Tensors of single experts and of fused query, key and value keep a name of their own
    (lopa.export.verify.reference_layout).
    """
    settings: Callable[[Settings], dict[str, Any]]
    """Function from config.json to the arguments of a transformers configuration; unknown settings are dropped."""


def names_of_architecture(architecture: str) -> Names:
    """Return the names for a manifest's architecture."""
    return _OTHERS.get(architecture, _TRANSFORMERS)


def _same_settings(config: Settings) -> dict[str, Any]:
    return {name: config[name] for name in _SAME if config.get(name) is not None}


def _llada_settings(config: Settings) -> dict[str, Any]:
    """Return the settings; null means the default of OLMo, which LLaDA is based on."""
    return {
        "vocab_size": config.get("embedding_size") or config["vocab_size"],
        "hidden_size": config["d_model"],
        "intermediate_size": config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        "num_hidden_layers": config["n_layers"],
        "num_attention_heads": config["n_heads"],
        "num_key_value_heads": config.get("n_kv_heads") or config["n_heads"],
        "max_position_embeddings": config["max_sequence_length"],
        "rms_norm_eps": config["rms_norm_eps"],
        "rope_theta": config["rope_theta"],
        "tie_word_embeddings": bool(config.get("weight_tying")),
    }


def _qwen3_moe_settings(config: Settings) -> dict[str, Any]:
    return _same_settings(config) | {name: config[name] for name in _QWEN3_MOE if config.get(name) is not None}


def _llada_moe_settings(config: Settings) -> dict[str, Any]:
    """Return Qwen3-MoE's settings. The reference code never normalizes scores, whatever config.json says."""
    frequencies = config.get("moe_layer_freq") or []
    return _same_settings(config) | {
        "intermediate_size": config.get("dense_intermediate_size") or config["expert_intermediate_size"],
        "num_experts": config["num_experts"],
        "num_experts_per_tok": config["num_experts_per_tok"],
        "moe_intermediate_size": config["expert_intermediate_size"],
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, frequency in enumerate(frequencies) if frequency == 0],
    }


def _llada2_settings(config: Settings) -> dict[str, Any]:
    """Return GLM-4-MoE's settings. The reference code does not divide the score of a single expert by itself."""
    settings = _same_settings(config)
    if settings.get("num_key_value_heads") == 0:
        settings["num_key_value_heads"] = config["num_attention_heads"]
    factor = config.get("partial_rotary_factor")
    return settings | {
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": config.get("num_shared_experts") or 0,
        "first_k_dense_replace": config.get("first_k_dense_replace") or 0,
        "partial_rotary_factor": 1.0 if factor is None else factor,
        "norm_topk_prob": config["num_experts_per_tok"] > 1,
        "use_qk_norm": True,
        **{
            name: config[name]
            for name in (
                *("num_experts_per_tok", "moe_intermediate_size"),
                *("n_group", "topk_group", "routed_scaling_factor"),
            )
        },
    }


def _llada2_tensor(name: str) -> str:
    for part, replacement in _LLADA2_MODULES.items():
        name = name.replace(part, replacement)
    return name


def _llada_tensor(name: str) -> str:
    found = _LLADA_TENSOR.fullmatch(name)
    if found is None:
        return name
    inside = found["layer"] is not None
    module = (_LLADA_BLOCK_MODULES if inside else _LLADA_OUTER_MODULES).get(found["module"])
    if module is None:
        return name
    return f"model.layers.{found['layer']}.{module}.{found['kind']}" if inside else f"{module}.{found['kind']}"


_TRANSFORMERS = Names("model.embed_tokens.weight", "lm_head.weight", str, _same_settings)
_OTHERS = {
    "llada": Names("model.transformer.wte.weight", "model.transformer.ff_out.weight", _llada_tensor, _llada_settings),
    "llada2-moe": Names("model.word_embeddings.weight", "lm_head.weight", _llada2_tensor, _llada2_settings),
    "sdar-moe": Names("model.embed_tokens.weight", "lm_head.weight", str, _qwen3_moe_settings),
    "llada-moe": Names("model.embed_tokens.weight", "lm_head.weight", str, _llada_moe_settings),
}
