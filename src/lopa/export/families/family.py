"""Record of a family of networks. Each family has its own file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lopa.export.families.settings import Setting
from lopa.export.families.sizes import TRANSFORMERS_SIZES
from lopa.export.json_file import JsonValues
from lopa.runtime.bundle.manifest import ModelDimensions

QWEN2_LAYER = {
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
"""Tensor names in a layer, from bundle to transformers, for Qwen2, Llama and models with the same layers."""
QWEN3_LAYER = QWEN2_LAYER | {
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
}
EXPERTS = {
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.experts.gate.weight": "mlp.experts.{expert}.gate_proj.weight",
    "mlp.experts.up.weight": "mlp.experts.{expert}.up_proj.weight",
    "mlp.experts.down.weight": "mlp.experts.{expert}.down_proj.weight",
}
"""Tensor names of a sparse layer's router and experts, one tensor per expert."""
QWEN2_OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
D2F: Mapping[str, Any] = {
    "block_size": 32,
    "block_add_threshold": 0.1,
    "decoded_token_threshold": 0.95,
    "skip_threshold": 0.9,
}
"""Options of GenerationConfig that D2F's adapters were trained for. A family overrides them."""


@dataclass(frozen=True)
class Architecture:
    """Properties that differ between networks with the layers of lopa.export.graph.module.

    `layer_names` and `outer_names` map all possible tensor names of a bundle to the names in a checkpoint. The
    dimensions determine which of them a checkpoint has.
    """

    name: str
    """Name in the manifest and for `--family`."""
    prediction_shift: Literal[0, 1]
    """Offset of the position that a row predicts: 1 for the next position, 0 for its own."""
    layer_prefix: str = "model.layers.{layer}."
    """Prefix of a layer's tensor names, with {layer} for its number."""
    layer_names: Mapping[str, str] = field(default_factory=lambda: QWEN2_LAYER)
    """Query, key and value may have the same name: their rows then follow each other in one tensor."""
    outer_names: Mapping[str, str] = field(default_factory=lambda: QWEN2_OUTER)
    shared_prefixes: Mapping[str, str] = field(default_factory=dict)
    """Prefixes of names, and those of the second modules with the same weights in a network that runs them two ways.

    Such a network has stacked experts."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Recognition, sizes and decoding defaults of one kind of checkpoint."""

    architecture: Architecture
    model_names: str
    """Names of published checkpoints, for errors."""
    model_type: str
    """Value of model_type in config.json."""
    classes: tuple[str, ...]
    """Names in `architectures` of config.json that belong to this family only."""
    other_model_types: tuple[str, ...] = ()
    """Further values of model_type in copies of the checkpoint."""
    marker: str | None = None
    """Entry of config.json that distinguishes this family from another with the same model_type, or None."""
    shares_model_type: bool = False
    """True if autoregressive networks have the same model_type, so that only the class identifies the family."""
    lookalikes: tuple[str, ...] = ()
    """Values of model_type of autoregressive networks with the same tensors. They need the family to be requested."""
    sizes: Callable[[JsonValues], ModelDimensions]
    """Function from config.json to dimensions. Raises BadInputError for values that are missing or of another type."""
    nested: str | None = None
    """Entry of config.json with the text network's entries, which are read like those of the top level; None without
    one."""
    ignored_tensors: tuple[str, ...] = ()
    """Beginnings of the names of tensors that the network does not use."""
    generation: Callable[[JsonValues], dict[str, Any]] | None = None
    """Function from generation_config.json to options of GenerationConfig that are the bundle's defaults."""
    reads: tuple[str, ...] = TRANSFORMERS_SIZES
    """Entries of config.json that `sizes` reads."""
    settings: tuple[Setting, ...] = ()
    """Settings of config.json that this network does not support, in addition to the generally unsupported ones."""
    tied: str = "tie_word_embeddings"
    """Name of the entry that is true if the head shares the embedding's weight."""
    block_size: str | None = None
    """Name of the entry with the block size in training, or None."""
    adapter_folder: str | None = None
    """Description of a checkpoint with an adapter in its folder `adapter`, or None if such a folder has no meaning."""
    mask_tokens: tuple[str, ...] = ()
    """Possible texts of the mask token among the added tokens, for checkpoints that do not name it in a setting."""
    expand_tokens: tuple[str, ...] = ()
    """Possible texts of the token that stands for two masked positions, among the added tokens."""
    mask_id: int | None = None
    """Id in the reference code, for checkpoints whose files do not name the mask token."""
    more_ends: bool = False
    """True if several tokens may end an answer: eos_token_id may be a list, generation_config.json may add others."""
    add_bos: bool
    """True if prompts start with the tokenizer's beginning-of-text token."""
    decoding: Mapping[str, Any]
    """Options of GenerationConfig that the checkpoint was trained for, if they differ from D2F's."""
    decoding_with_adapter: Mapping[str, Any] | None = None
    """Options with an adapter, or None if an adapter does not change them."""

    @property
    def model_types(self) -> tuple[str, ...]:
        """All values of model_type in config.json."""
        return (self.model_type, *self.other_model_types)

    @property
    def name(self) -> str:
        """Name of the architecture."""
        return self.architecture.name


def block_by_block(skip_threshold: float, block_size: int, **more: int) -> dict[str, Any]:
    """Return the decoding defaults, with `more` of them, of a model that was trained on blocks whose previous blocks
    are unmasked."""
    return {
        "strategy": "threshold",
        "confidence": "probability",
        "skip_threshold": skip_threshold,
        "alignment": "absolute",
        "block_add_threshold": 1.0,
        "attention": "block_causal",
        "block_size": block_size,
        **more,
    }
