"""What a checkpoint calls its settings and tensors, turned into the names that transformers has for its networks.

Written apart from the families of lopa.export.checkpoint, whose names are checked by it. Most checkpoints have
transformers' names already.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]
"""Of a config.json, by name."""

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
_OF_LLADA_BLOCK = {
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
_OUTSIDE_OF_LLADA_BLOCKS = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
_LLADA_TENSOR = re.compile(r"model\.transformer\.(?:blocks\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


@dataclass(frozen=True)
class Names:
    """Those of one kind of checkpoint."""

    embedding: str
    head: str
    """Of the tensor that a tied checkpoint does not have."""
    tensor: Callable[[str], str]
    """From the checkpoint's name to transformers'; one that it does not know stays as it is."""
    settings: Callable[[Settings], dict[str, Any]]
    """From config.json to arguments of a configuration of transformers, with those left out that it does not have."""


def names_of_architecture(architecture: str) -> Names:
    """By a manifest's architecture."""
    return _OTHERS.get(architecture, _TRANSFORMERS)


def _same_settings(config: Settings) -> dict[str, Any]:
    return {name: config[name] for name in _SAME if config.get(name) is not None}


def _llada_settings(config: Settings) -> dict[str, Any]:
    """As OLMo, LLaDA's origin, fills in what is null."""
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


def _llada_tensor(name: str) -> str:
    found = _LLADA_TENSOR.fullmatch(name)
    if found is None:
        return name
    inside = found["layer"] is not None
    module = (_OF_LLADA_BLOCK if inside else _OUTSIDE_OF_LLADA_BLOCKS).get(found["module"])
    if module is None:
        return name
    return f"model.layers.{found['layer']}.{module}.{found['kind']}" if inside else f"{module}.{found['kind']}"


_TRANSFORMERS = Names("model.embed_tokens.weight", "lm_head.weight", str, _same_settings)
_OTHERS = {
    "llada": Names("model.transformer.wte.weight", "model.transformer.ff_out.weight", _llada_tensor, _llada_settings)
}
