"""The network families that can be exported, one record each. Does not read files."""

from dataclasses import dataclass
from typing import Literal

from lopa.runtime.errors import BadInputError


@dataclass(frozen=True)
class Architecture:
    """What differs between model types that share the layers of lopa.export.graph.module.

    `layer_names` and `outer_names` map the names of a bundle's tensors to those of a checkpoint.
    """

    name: str
    """As the manifest calls it."""
    prediction_shift: Literal[0, 1]
    """1: the statistics of a row speak of the next position."""
    add_bos: bool
    """Whether a prompt starts with the tokenizer's beginning-of-text token."""
    layer_prefix: str
    """Start of a layer's tensor names, with {layer} for its number."""
    layer_names: dict[str, str]
    outer_names: dict[str, str]


_QWEN2_LAYER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.query.bias": "self_attn.q_proj.bias",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.key.bias": "self_attn.k_proj.bias",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.value.bias": "self_attn.v_proj.bias",
    "attention.output.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}

DREAM = Architecture(
    name="dream",
    prediction_shift=1,
    add_bos=True,
    layer_prefix="model.layers.{layer}.",
    layer_names=_QWEN2_LAYER,
    outer_names={
        "embedding.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight",
    },
)

# model_type of config.json -> record. DiffuCoder has Dream's model_type.
ARCHITECTURES: dict[str, Architecture] = {"Dream": DREAM}


def architecture_of_model_type(model_type: object, *, source: str) -> Architecture:
    """The record of a config.json's model_type; `source` names the file in the error.

    Raises BadInputError for a type that is not in the table.
    """
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise BadInputError(
            f"{source} has model_type {repr(model_type)[:200]}",
            expected="one of " + ", ".join(sorted(ARCHITECTURES)),
            remedy="export a Dream or DiffuCoder checkpoint; other architectures are not supported",
        )
    return ARCHITECTURES[model_type]
