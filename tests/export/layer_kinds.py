"""Kinds of layers, and networks of transformers that have them, as references independent of our code."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lopa.runtime.bundle.manifest import ModelDimensions

_IN_BUNDLE = (
    ("model.embed_tokens", "embedding"),
    ("model.norm", "final_norm"),
    ("lm_head", "head"),
    ("model.layers", "layers"),
    ("input_layernorm", "attention_norm"),
    ("post_attention_layernorm", "mlp_norm"),
    ("self_attn.q_proj", "attention.query"),
    ("self_attn.k_proj", "attention.key"),
    ("self_attn.v_proj", "attention.value"),
    ("self_attn.o_proj", "attention.output"),
    ("self_attn.q_norm", "attention.query_norm"),
    ("self_attn.k_norm", "attention.key_norm"),
    ("gate_proj", "gate"),
    ("up_proj", "up"),
    ("down_proj", "down"),
)
_SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,  # large enough to affect results
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}


@dataclass(frozen=True)
class LayerKind:
    """Biases, norms and head size of a layer."""

    qkv_bias: bool
    qk_norm: bool
    head_size: int
    """Size of a head; 8 is the hidden size divided by the heads."""

    @property
    def dimensions(self) -> ModelDimensions:
        return ModelDimensions(
            vocab_size=_SIZES["vocab_size"],
            hidden_size=_SIZES["hidden_size"],
            intermediate_size=_SIZES["intermediate_size"],
            layers=_SIZES["num_hidden_layers"],
            heads=_SIZES["num_attention_heads"],
            kv_heads=_SIZES["num_key_value_heads"],
            head_size=self.head_size,
            max_positions=_SIZES["max_position_embeddings"],
            rope_theta=10000.0,
            rms_norm_eps=_SIZES["rms_norm_eps"],
            qkv_bias=self.qkv_bias,
            qk_norm=self.qk_norm,
        )

    def network(self, dtype: torch.dtype) -> Any:
        """Return transformers' network with weights that are never 0, and never 1 in norms."""
        settings = {**_SIZES, "head_dim": self.head_size}
        if self.qk_norm:
            model: Any = Qwen3ForCausalLM(Qwen3Config(**settings, attention_bias=self.qkv_bias))
        else:
            model = Qwen2ForCausalLM(Qwen2Config(**settings))
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.normal_(0, 1 / 4, generator=generator)
                if "norm" in name:
                    weight.abs_().add_(1)
                if name.endswith("o_proj.bias"):
                    weight.zero_()  # Qwen3 has this bias together with the others; our networks never have it
        return model.to(dtype).eval()


def weights_of_network(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights under their names in a bundle, with transformers' matrices [outputs, inputs]."""
    return {_name_in_bundle(name): w for name, w in model.state_dict().items() if not name.endswith("o_proj.bias")}


def as_in_bundle(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with matrices [inputs, outputs]."""
    return {name: w.T if w.ndim == 2 and name != "embedding.weight" else w for name, w in weights.items()}


def _name_in_bundle(name: str) -> str:
    for old, new in _IN_BUNDLE:
        name = name.replace(old, new)
    return name
