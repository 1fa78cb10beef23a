"""transformers' Qwen2 with a checkpoint's weights: a reference for whole sequences under any mask.

Dream is Qwen2 without the causal mask, and its tensors have the same names. Nothing of our own network is used. Does
not know engines, caches or windows, nor how weights were quantized.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from lopa.export.json_file import json_object_from_file
from lopa.export.verify.cases import Sequences
from lopa.export.verify.reference_weights import weights_from_files
from lopa.export.verify.session_check import WholeForward
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.errors import BadInputError

_ARCHITECTURES = ("dream",)
_SETTINGS = (
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


class TransformersReference:
    """Reference.forward by a Qwen2ForCausalLM in float32 on the CPU."""

    name = "transformers"

    def __init__(self, model: Any) -> None:
        """`model` is a Qwen2ForCausalLM with eager attention, which adds the mask it is given to the scores."""
        self._model = model

    @torch.no_grad()
    def forward(self, sequences: Sequences) -> WholeForward:
        """Run the B sequences as one batch. The keys and values come from the cache that the model fills."""
        allowed = torch.from_numpy(sequences.mask)[:, None]  # [B, 1, L, L]
        forbidden = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min)
        answer = self._model.model(
            input_ids=torch.from_numpy(sequences.input_ids),
            position_ids=torch.from_numpy(sequences.position_ids),
            # In a dictionary by kind of layer the model takes the mask as it is and makes no causal one.
            attention_mask={"full_attention": forbidden},
            use_cache=True,
        )
        wanted = torch.from_numpy(sequences.wanted)
        hidden = answer.last_hidden_state[torch.arange(len(wanted))[:, None], wanted]  # [B, Q, H]
        layers = answer.past_key_values.layers
        return WholeForward(
            logits=self._model.lm_head(hidden).numpy(),
            rows=tuple(part.numpy() for layer in layers for part in (layer.keys, layer.values)),
        )


def weights_from_origin(manifest: Manifest, checkpoint: Path, lora: Path | None) -> dict[str, torch.Tensor]:
    """The float32 weights, by their names in the checkpoint, of the files from which the bundle of `manifest` was made.

    check_origin says whether they still are. Raises BadInputError for an architecture without a reference.
    """
    if manifest.architecture not in _ARCHITECTURES:
        raise BadInputError(
            f"a bundle of architecture {manifest.architecture!r}",
            expected="one of " + ", ".join(_ARCHITECTURES),
            remedy="verify it without --checkpoint: against its own weights in numpy",
        )
    files = [checkpoint / name for name in manifest.origin.checkpoint if name.endswith(".safetensors")]
    weights = weights_from_files(files, lora)
    if _settings(checkpoint).get("tie_word_embeddings"):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


def reference_from_weights(checkpoint: Path, weights: dict[str, torch.Tensor]) -> TransformersReference:
    """The network of the checkpoint's config.json with `weights`.

    Raises BadInputError for tensors that do not fit it.
    """
    return TransformersReference(_model_from_weights(_settings(checkpoint), weights, source=checkpoint))


def _settings(checkpoint: Path) -> dict[str, Any]:
    return json_object_from_file(checkpoint / "config.json", remedy="give the checkpoint's folder")


def _model_from_weights(settings: dict[str, Any], weights: dict[str, torch.Tensor], *, source: Path) -> Any:
    config = Qwen2Config(**{name: settings[name] for name in _SETTINGS if settings.get(name) is not None})
    config._attn_implementation = "eager"
    with torch.device("meta"):  # no memory and no time for initial values
        model = Qwen2ForCausalLM(config)
    try:
        model.load_state_dict(weights, strict=True, assign=True)
    except RuntimeError as error:
        raise BadInputError(
            f"the tensors of {source} do not fit transformers' Qwen2: {error}",
            expected="a Dream checkpoint, whose tensors have Qwen2's names and shapes",
            remedy="give the checkpoint that was exported",
        ) from error
    # The rotary frequencies are computed, not loaded, and on "meta" they have no values.
    model.model.rotary_emb = Qwen2RotaryEmbedding(config)
    return model.eval()
