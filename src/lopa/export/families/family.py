"""What a family of networks is: one record, made in a file of its own for each. Does not read files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lopa.export.families.settings import Setting
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
"""From the names of a bundle to those of transformers in a layer: of Qwen2, of Llama, and of what has their layers."""
QWEN3_LAYER = QWEN2_LAYER | {
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
}
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
"""Options of GenerationConfig for which D2F's adapters were trained; a family says what it has otherwise."""


@dataclass(frozen=True)
class Architecture:
    """The network, where families with the layers of lopa.export.graph.module differ.

    `layer_names` and `outer_names` map the names of a bundle's tensors to those of a checkpoint: every name that there
    can be; which of them a checkpoint has follows from its dimensions.
    """

    name: str
    """As the manifest and `--family` call it."""
    prediction_shift: Literal[0, 1]
    """1: the statistics of a row speak of the next position."""
    layer_prefix: str = "model.layers.{layer}."
    """Start of a layer's tensor names, with {layer} for its number."""
    layer_names: Mapping[str, str] = field(default_factory=lambda: QWEN2_LAYER)
    outer_names: Mapping[str, str] = field(default_factory=lambda: QWEN2_OUTER)


@dataclass(frozen=True, kw_only=True)
class Family:
    """How checkpoints of one kind are known, read and decoded."""

    architecture: Architecture
    published: str
    """Names of checkpoints, for errors."""
    model_type: str
    """Of config.json."""
    classes: tuple[str, ...]
    """Names in the `architectures` of config.json that belong to this family alone."""
    shares_model_type: bool = False
    """Autoregressive networks have this model_type too: the class alone tells."""
    lookalikes: tuple[str, ...] = ()
    """Values of model_type of autoregressive networks with its tensors; taken when the family is asked for."""
    sizes: Callable[[JsonValues], ModelDimensions]
    """From config.json. Raises BadInputError for a value that is missing or of another type."""
    settings: tuple[Setting, ...] = ()
    """What config.json may ask for and this network has not, beside what none has."""
    tied: str = "tie_word_embeddings"
    """The entry that says whether the head uses the embedding's weight."""
    block_size: str | None = None
    """The entry with the size of the blocks that the checkpoint was trained on."""
    mask_tokens: tuple[str, ...] = ()
    """Texts of the mask token among the tokenizer's added tokens, for checkpoints that name it nowhere else."""
    mask_id: int | None = None
    """What the published code takes where no file names the mask token."""
    more_ends: bool = False
    """Several tokens may end an answer: eos_token_id may be a list, and generation_config.json may have others."""
    add_bos: bool
    """Whether a prompt starts with the tokenizer's beginning-of-text token."""
    decoding: Mapping[str, Any]
    """Options of GenerationConfig as the checkpoint was trained, where they are not D2F's."""
    decoding_with_adapter: Mapping[str, Any] | None = None
    """The same with an adapter, where that makes another model of it; None: no other."""

    @property
    def name(self) -> str:
        """That of its network."""
        return self.architecture.name
