"""Which published checkpoints can be imitated: their sizes, token ids and config.json. Knows no weights."""

from dataclasses import dataclass
from typing import Any

from lopa.runtime.bundle.manifest import ModelDimensions


@dataclass(frozen=True)
class Likeness:
    """One architecture of the Dream family, and the ids of its special tokens."""

    dimensions: ModelDimensions
    mask: int
    eos: int
    """Also the padding, and the bos_token_id of config.json."""
    bos: int
    """Of the tokenizer, with which prompts begin."""


_DREAM_7B = Likeness(
    ModelDimensions(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        layers=28,
        heads=28,
        kv_heads=4,
        head_size=128,
        max_positions=131072,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
    ),
    mask=151666,
    eos=151643,
    bos=151665,
)
_DREAM_HALF_B = Likeness(
    ModelDimensions(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        layers=24,
        heads=14,
        kv_heads=2,
        head_size=64,
        max_positions=131072,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
    ),
    mask=151666,
    eos=151643,
    bos=151665,
)
LIKENESSES: dict[str, Likeness] = {
    "dream-7b": _DREAM_7B,
    "diffucoder-7b": _DREAM_7B,  # trained from another base, the same in every size
    "dream-0.5b": _DREAM_HALF_B,
}


def config_from_likeness(likeness: Likeness) -> dict[str, Any]:
    """What config.json says, without the entries that would run a checkpoint's own code."""
    sizes = likeness.dimensions
    return {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        "attention_dropout": 0.0,
        "bos_token_id": likeness.eos,
        "eos_token_id": likeness.eos,
        "pad_token_id": likeness.eos,
        "mask_token_id": likeness.mask,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": sizes.intermediate_size,
        "max_position_embeddings": sizes.max_positions,
        "max_window_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "rms_norm_eps": sizes.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": sizes.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": sizes.vocab_size,
    }
