"""Mapping of a checkpoint's settings and module names to the settings and names of transformers' networks.

The module is independent of the families of lopa.export.checkpoint, which it checks. Most checkpoints have
transformers' names. A `*` in a name stands for the number of a layer.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]
"""Content of a config.json."""

_STACKED = {r"\.experts\.(\w+_proj)\.weight$": r".experts.\1"}
"""Mapping of stacked experts to the parameters of transformers, whose names have no ending."""
_LAYER = re.compile(r"(?<=model\.layers\.)\d+(?=\.)")
_LLADA_MODULES = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
} | {
    f"model.layers.*.{module}": f"model.transformer.blocks.*.{theirs}"
    for module, theirs in {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "q_proj",
        "self_attn.k_proj": "k_proj",
        "self_attn.v_proj": "v_proj",
        "self_attn.o_proj": "attn_out",
        "post_attention_layernorm": "ff_norm",
        "mlp.gate_proj": "ff_proj",
        "mlp.up_proj": "up_proj",
        "mlp.down_proj": "ff_out",
    }.items()
}
_LLADA2_MODULES = {
    "model.embed_tokens": "model.word_embeddings",
    "model.layers.*.self_attn.q_norm": "model.layers.*.attention.query_layernorm",
    "model.layers.*.self_attn.k_norm": "model.layers.*.attention.key_layernorm",
    "model.layers.*.self_attn.o_proj": "model.layers.*.attention.dense",
    "model.layers.*.mlp.gate.e_score_correction_bias": "model.layers.*.mlp.gate.expert_bias",
}
_LLADA2_FUSED = {
    f"model.layers.*.self_attn.{part}_proj": "model.layers.*.attention.query_key_value" for part in ("q", "k", "v")
}
_OUTER_IN_BUNDLE = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
_LAYER_IN_BUNDLE = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "mlp.router": "mlp.gate",
    "mlp.experts.gate": "mlp.experts.gate_proj",
    "mlp.experts.up": "mlp.experts.up_proj",
    "mlp.experts.down": "mlp.experts.down_proj",
    "mlp.shared.gate": "mlp.shared_experts.gate_proj",
    "mlp.shared.up": "mlp.shared_experts.up_proj",
    "mlp.shared.down": "mlp.shared_experts.down_proj",
}


@dataclass(frozen=True)
class Names:
    """Names in one kind of checkpoint that differ from transformers'."""

    settings: Callable[[Settings], dict[str, Any]] = dict
    """Function from config.json to the content that transformers' configuration reads."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Checkpoint's name by the network's, for the modules that have another one."""
    fused: Mapping[str, str] = field(default_factory=dict)
    """The same for modules whose rows follow each other in one matrix of the checkpoint."""

    @property
    def key_mapping(self) -> dict[str, str]:
        """Argument of from_pretrained: expressions for the checkpoint's names, and transformers' names."""
        return _STACKED | {
            "^" + re.escape(theirs).replace(r"\*", r"(\d+)"): ours.replace("*", r"\1")
            for ours, theirs in self.modules.items()
        }

    def in_checkpoint(self, module: str) -> str:
        """Return the checkpoint's name of a module of the network."""
        number = _LAYER.search(module)
        pattern = _LAYER.sub("*", module)
        theirs = self.modules.get(pattern) or self.fused.get(pattern) or pattern
        return theirs if number is None else theirs.replace("*", number[0])

    def is_fused(self, module: str) -> bool:
        """Return True if a module of the network is part of a matrix of the checkpoint."""
        return _LAYER.sub("*", module) in self.fused


def names_of_architecture(architecture: str) -> Names:
    """Return the names for a manifest's architecture."""
    return _OTHERS.get(architecture, Names())


def parameter_in_network(name: str) -> str:
    """Return transformers' name of a bundle's tensor. Experts have it before transformers stacks gate and up."""
    module, _, kind = name.rpartition(".")
    if module in _OUTER_IN_BUNDLE:
        return f"{_OUTER_IN_BUNDLE[module]}.{kind}"
    _, layer, part = module.split(".", 2)
    if (part, kind) == ("mlp.router", "bias"):
        kind = "e_score_correction_bias"
    return f"model.layers.{layer}.{_LAYER_IN_BUNDLE[part]}.{kind}"


_CANVAS_OUTER = {
    "embedding.weight": "model.decoder.embed_tokens.weight",
    "final_norm.weight": "model.decoder.norm.weight",
    "head.weight": "lm_head.weight",
    "self_conditioning.norm.weight": "model.decoder.self_conditioning.pre_norm.weight",
    "self_conditioning.gate.weight": "model.decoder.self_conditioning.gate_proj.weight",
    "self_conditioning.up.weight": "model.decoder.self_conditioning.up_proj.weight",
    "self_conditioning.down.weight": "model.decoder.self_conditioning.down_proj.weight",
}
_CANVAS_LAYER = {
    "attention_post_norm.weight": "post_attention_layernorm.weight",
    "mlp_norm.weight": "pre_feedforward_layernorm.weight",
    "mlp_post_norm.weight": "post_feedforward_layernorm_1.weight",
    "experts_norm.weight": "pre_feedforward_layernorm_2.weight",
    "experts_post_norm.weight": "post_feedforward_layernorm_2.weight",
    "post_norm.weight": "post_feedforward_layernorm.weight",
    "mlp.router.weight": "router.proj.weight",
    "mlp.router.scale": "router.scale",
    "mlp.experts.scale": "router.per_expert_scale",
    "mlp.experts.gate.weight": "experts.gate_proj.weight",
    "mlp.experts.up.weight": "experts.up_proj.weight",
    "mlp.experts.down.weight": "experts.down_proj.weight",
    "scalar": "layer_scalar",
}


def parameter_in_canvas_network(name: str) -> str:
    """Return transformers' name of a bundle's tensor in DiffusionGemma's network."""
    if name in _CANVAS_OUTER:
        return _CANVAS_OUTER[name]
    _, layer, part = name.split(".", 2)
    if part == "causal_scalar":
        return f"model.encoder.language_model.layers.{layer}.layer_scalar"
    if part in _CANVAS_LAYER:
        return f"model.decoder.layers.{layer}.{_CANVAS_LAYER[part]}"
    return parameter_in_network(name).replace("model.layers.", "model.decoder.layers.")


def _settings_with_head_dim(config: Settings) -> dict[str, Any]:
    """Return the settings with the head size of the reference code, where transformers would assume 128."""
    return {**config, "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]}


def _llada_settings(config: Settings) -> dict[str, Any]:
    """Return Llama's settings; null means the default of OLMo, which LLaDA is based on."""
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


def _llada_moe_settings(config: Settings) -> dict[str, Any]:
    """Return Qwen3-MoE's settings. The reference code never normalizes scores, whatever config.json says."""
    frequencies = config.get("moe_layer_freq") or []
    return {
        **_settings_with_head_dim(config),
        "intermediate_size": config.get("dense_intermediate_size") or config["expert_intermediate_size"],
        "moe_intermediate_size": config["expert_intermediate_size"],
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, frequency in enumerate(frequencies) if frequency == 0],
    }


def _llada2_settings(config: Settings) -> dict[str, Any]:
    """Return GLM-4-MoE's settings. The reference code does not divide the score of a single expert by itself.

    It rotates all channels where config.json gives no partial_rotary_factor.
    """
    factor = config.get("partial_rotary_factor")
    return {
        **config,
        "num_key_value_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "n_routed_experts": config.get("num_experts") or config["num_local_experts"],
        "n_shared_experts": config.get("num_shared_experts") or 0,
        "first_k_dense_replace": config.get("first_k_dense_replace") or 0,
        "partial_rotary_factor": 1.0 if factor is None else factor,
        "norm_topk_prob": config["num_experts_per_tok"] > 1,
        "use_qk_norm": True,
    }


_OTHERS = {
    "llada": Names(_llada_settings, _LLADA_MODULES),
    "llada2-moe": Names(_llada2_settings, _LLADA2_MODULES, _LLADA2_FUSED),
    "llada-moe": Names(_llada_moe_settings),
    "wedlm": Names(_settings_with_head_dim),
}
