"""Reference for complete sequences under any mask: a network of transformers with a checkpoint's weights.

Biases and norms of the layers determine whether it is Qwen2, Qwen3 or Llama. For mixtures of experts it is GLM-4-MoE if
the router has a sigmoid, and Qwen3-MoE otherwise. It shares no code with lopa's own network.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding

from lopa.export.json_file import json_object_from_file
from lopa.export.verify.cases import Sequences
from lopa.export.verify.reference_layout import weights_in_layout
from lopa.export.verify.reference_names import names_of_architecture
from lopa.export.verify.reference_weights import weights_from_files
from lopa.export.verify.session_check import WholeForward
from lopa.runtime.bundle.manifest import PREDICTION_SHIFTS, Manifest, ModelDimensions
from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class _Network:
    """Classes of a network of transformers."""

    config: type[Any]
    model: type[Any]
    rotary: type[Any]


_LLAMA = _Network(LlamaConfig, LlamaForCausalLM, LlamaRotaryEmbedding)
_QWEN2 = _Network(Qwen2Config, Qwen2ForCausalLM, Qwen2RotaryEmbedding)
_QWEN3 = _Network(Qwen3Config, Qwen3ForCausalLM, Qwen3RotaryEmbedding)
_QWEN3_MOE = _Network(Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3MoeRotaryEmbedding)
_GLM4_MOE = _Network(Glm4MoeConfig, Glm4MoeForCausalLM, Glm4MoeRotaryEmbedding)


class _NoSharedExpert(nn.Module):
    """Shared expert of a layer without one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return zeros in the shape of `x`."""
        return torch.zeros_like(x)


class TransformersReference:
    """Reference that runs a network of transformers in float32 on the CPU."""

    name = "transformers"

    def __init__(self, model: Any) -> None:
        """Wrap `model`, whose eager attention adds the given mask to the scores."""
        self._model = model

    @torch.no_grad()
    def forward(self, sequences: Sequences) -> WholeForward:
        """Run the B sequences as one batch. Keys and values come from the model's cache."""
        allowed = torch.from_numpy(sequences.mask)[:, None]  # [B, 1, L, L]
        answer = self._model.model(
            input_ids=torch.from_numpy(sequences.input_ids),
            position_ids=torch.from_numpy(sequences.position_ids),
            # The model uses a mask of 4 axes unchanged and adds no causal mask.
            attention_mask=torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min),
            use_cache=True,
        )
        queries = torch.from_numpy(sequences.wanted)
        hidden = answer.last_hidden_state[torch.arange(len(queries))[:, None], queries]  # [B, Q, H]
        layers = answer.past_key_values.layers
        return WholeForward(
            logits=self._model.lm_head(hidden).numpy(),
            rows=tuple(part.numpy() for layer in layers for part in (layer.keys, layer.values)),
        )


def weights_from_origin(manifest: Manifest, checkpoint: Path, lora: Path | None) -> dict[str, torch.Tensor]:
    """Return the float32 weights, under the checkpoint's names, of the files that the bundle was made from.

    check_origin verifies the files. Raises BadInputError for an unknown architecture.
    """
    if manifest.architecture not in PREDICTION_SHIFTS:
        raise BadInputError(
            f"unsupported architecture {manifest.architecture!r} of the bundle",
            expected="one of " + ", ".join(PREDICTION_SHIFTS),
            remedy="verify it without --checkpoint, against its own weights in numpy",
        )
    files = [checkpoint / name for name in manifest.origin.checkpoint if name.endswith(".safetensors")]
    weights = weights_from_files(files, lora)
    names = names_of_architecture(manifest.architecture)
    if names.settings(_config_file(checkpoint)).get("tie_word_embeddings"):
        weights[names.head] = weights[names.embedding]
    return weights


def reference_from_weights(
    manifest: Manifest, checkpoint: Path, weights: dict[str, torch.Tensor]
) -> TransformersReference:
    """Return the network of the checkpoint's config.json, of the kind in `manifest`, with `weights`.

    Raises BadInputError for tensors that do not fit it.
    """
    model = empty_network(manifest.dimensions, manifest.architecture, checkpoint, attention="eager")
    load_weights(model, weights_of_network(model, manifest.architecture, weights), source=checkpoint)
    return TransformersReference(model)


def empty_network(dimensions: ModelDimensions, architecture: str, checkpoint: Path, *, attention: str) -> Any:
    """Return the network of the checkpoint's config.json with parameters on "meta", that is, without memory.

    `attention` names one of transformers' implementations.
    """
    settings = names_of_architecture(architecture).settings(_config_file(checkpoint))
    network = _network_of(dimensions)
    heads = settings["num_attention_heads"]
    assumed = {"head_dim": settings["hidden_size"] // heads, "num_key_value_heads": heads}
    config = network.config(**assumed | settings)
    config._attn_implementation = attention
    config._experts_implementation = "eager"
    config.attention_bias = dimensions.qkv_bias
    with torch.device("meta"):
        model = network.model(config)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_parameter("bias", None)  # Qwen3Attention has four biases or none
        if not dimensions.qk_norm and hasattr(layer.self_attn, "q_norm"):
            layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()  # Qwen3-MoE always has both
        if dimensions.moe is not None and not dimensions.moe.shared_size and hasattr(layer.mlp, "shared_experts"):
            layer.mlp.shared_experts = _NoSharedExpert()
    # Rotary frequencies are computed, not loaded, and tensors on "meta" have no values.
    model.model.rotary_emb = network.rotary(config)
    return model.eval()


def _network_of(dimensions: ModelDimensions) -> _Network:
    if dimensions.moe is not None:
        return _GLM4_MOE if dimensions.moe.score == "sigmoid" else _QWEN3_MOE
    return _QWEN3 if dimensions.qk_norm else _QWEN2 if dimensions.qkv_bias else _LLAMA


def weights_of_network(network: Any, architecture: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return `weights`, which have the checkpoint's names, under the names and in the layout of `network`."""
    names, config = names_of_architecture(architecture), network.config
    named = {names.tensor(name): tensor for name, tensor in weights.items()}
    return weights_in_layout(named, (config.num_attention_heads, config.num_key_value_heads, config.head_dim))


def load_weights(network: Any, weights: Mapping[str, torch.Tensor], *, source: Path) -> None:
    """Assign `weights` to `network` without a copy. Raises BadInputError for tensors that do not fit."""
    try:
        network.load_state_dict(weights, strict=True, assign=True)
    except RuntimeError as error:
        raise BadInputError(
            f"the tensors of {source} do not fit transformers' {type(network).__name__}: {error}",
            expected="a checkpoint whose tensors have the shapes that its config.json gives",
            remedy="pass the checkpoint that was exported",
        ) from error


def _config_file(checkpoint: Path) -> dict[str, Any]:
    return json_object_from_file(checkpoint / "config.json", remedy="pass the checkpoint's folder")
