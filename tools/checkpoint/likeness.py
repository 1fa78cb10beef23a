"""Published checkpoints that can be imitated: sizes, token ids and config.json, without weights.

Sizes of mixtures of experts are those of their published config.json, except where a comment says otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from lopa.export.families import FAMILIES
from lopa.export.families.family import Architecture
from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions
from lopa.runtime.bundle.manifest_checks import reasons_against_network
from lopa.runtime.errors import BadInputError
from tools.checkpoint import published_config

Heads = tuple[int, int, int]
"""Number of heads, number of key-value heads, head size."""
LAYER_MATRICES = (
    *("attention.query", "attention.key", "attention.value", "attention.output"),
    *("mlp.gate", "mlp.up", "mlp.down"),
)
"""Matrices in the order of the forward, by their bundle names."""


@dataclass(frozen=True)
class Likeness:
    """A published architecture with the ids of its special tokens."""

    dimensions: ModelDimensions
    mask: int
    eos: int
    """End-of-text token, also used for padding."""
    bos: int | None
    """Token at the start of prompts, or None if the tokenizer has none."""
    family: str = "dream"
    """Name in lopa.export.families."""
    config: Callable[[ModelDimensions], dict[str, Any]] = published_config.dream
    """Return config.json without token ids, and without entries that would run the checkpoint's own code."""
    mask_text: str = "<|mask|>"
    names_mask: bool = True
    """True if config.json and the tokenizer's settings name the mask token. Otherwise it is only an added token."""
    tied: bool = False
    """True if the head shares the embedding's tensor."""
    ends: tuple[int, ...] = ()
    """Further end tokens of an answer, listed before eos in generation_config.json."""
    adapted: tuple[str, ...] = LAYER_MATRICES
    """Matrices that the D2F adapter changes. Families without an adapter list all matrices."""

    @property
    def architecture(self) -> Architecture:
        """Architecture of the family, with its tensor names."""
        return FAMILIES[self.family].architecture


def _sizes(
    vocab: int, hidden: int, mlp: int, layers: int, heads: Heads, positions: int, **more: Any
) -> ModelDimensions:
    """Return sizes with Qwen2's defaults, overridden by `more`."""
    count, kv_count, size = heads
    return ModelDimensions(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=mlp,
        layers=layers,
        heads=count,
        kv_heads=kv_count,
        head_size=size,
        max_positions=positions,
        **{"rope_theta": 1e6, "rms_norm_eps": 1e-6, **more},
    )


_DREAM_7B = Likeness(_sizes(152064, 3584, 18944, 28, (28, 4, 128), 131072), mask=151666, eos=151643, bos=151665)
LIKENESSES: dict[str, Likeness] = {
    "dream-7b": _DREAM_7B,
    "diffucoder-7b": _DREAM_7B,  # another base model with equal sizes
    "dream-0.5b": replace(_DREAM_7B, dimensions=_sizes(151936, 896, 4864, 24, (14, 2, 64), 131072)),
    "llada-8b": Likeness(
        _sizes(126464, 4096, 12288, 32, (32, 32, 128), 4096, rope_theta=5e5, rms_norm_eps=1e-5, qkv_bias=False),
        mask=126336,
        eos=126081,
        bos=126080,  # assumed: the preceding id
        family="llada",
        config=published_config.llada,
        adapted=LAYER_MATRICES[:4],
    ),
    # Assumed without access to the files: the sizes of Qwen2.5-1.5B, which is also tied.
    "fast-dllm-v2-1.5b": Likeness(
        _sizes(151936, 1536, 8960, 28, (12, 2, 128), 32768),
        mask=151665,
        eos=151645,
        bos=151643,
        family="fast-dllm-v2",
        config=published_config.fast_dllm_v2,
        mask_text="|<MASK>|",
        names_mask=False,
        tied=True,
    ),
    # Assumed: the sizes of Qwen3-1.7B, untied like SDAR-4B and SDAR-8B.
    "sdar-1.7b": Likeness(
        _sizes(151936, 2048, 6144, 28, (16, 8, 128), 32768, qkv_bias=False, qk_norm=True),
        mask=151669,
        eos=151643,
        bos=None,
        family="sdar",
        config=published_config.sdar,
        ends=(151645,),
    ),
    # Assumed: the sizes of Qwen2.5-7B, equal to Dream's, and the positions of WeDLM-8B.
    "wedlm-7b": Likeness(
        msgspec.structs.replace(_DREAM_7B.dimensions, max_positions=16384),
        mask=151665,
        eos=151643,
        bos=None,
        family="wedlm",
        config=published_config.wedlm,
        names_mask=False,
    ),
    # Layers, heads, positions and eps are from Diffulex's configuration class.
    "stable-diffcoder-8b": Likeness(
        _sizes(155136, 4096, 14336, 32, (32, 8, 128), 8192, rope_theta=5e5, qkv_bias=False),
        mask=5,
        eos=2,
        bos=0,
        family="stable-diffcoder",
        config=published_config.stable_diffcoder,
        mask_text="<[MASK_TOKEN]>",
        names_mask=False,
    ),
    "llada2-mini": Likeness(
        _sizes(
            *(157184, 2048, 5120, 20, (16, 4, 128), 32768),
            rope_theta=6e5,
            qkv_bias=False,
            qk_norm=True,
            partial_rotary_size=64,
            moe=MixtureOfExperts(
                experts=256,
                experts_per_token=8,
                expert_size=512,
                shared_size=512,
                dense_layers=[0],
                score="sigmoid",
                normalize=True,
                bias=True,
                groups=8,
                groups_per_token=4,
                scale=2.5,
            ),
        ),
        mask=156895,
        eos=156892,
        bos=None,
        family="llada2-moe",
        config=published_config.llada2_moe,
        names_mask=False,
        adapted=LAYER_MATRICES[3:4],
    ),
    # Assumed: the layers of Qwen3-30B-A3B and the positions of SDAR-1.7B.
    "sdar-30b-a3b": Likeness(
        _sizes(
            *(151936, 2048, 6144, 48, (32, 4, 128), 32768),
            qkv_bias=False,
            qk_norm=True,
            moe=MixtureOfExperts(experts=128, experts_per_token=8, expert_size=768, score="softmax", normalize=True),
        ),
        mask=151669,
        eos=151643,
        bos=None,
        family="sdar-moe",
        config=published_config.sdar_moe,
        ends=(151645,),
        adapted=LAYER_MATRICES[:4],
    ),
    "llada-moe-7b": Likeness(
        _sizes(
            *(157184, 2048, 1024, 16, (16, 16, 128), 8192),  # positions are assumed
            rope_theta=5e4,
            rms_norm_eps=1e-5,
            qkv_bias=False,
            qk_norm=True,
            moe=MixtureOfExperts(experts=64, experts_per_token=8, expert_size=1024, score="softmax", normalize=False),
        ),
        mask=156895,
        eos=156892,
        bos=None,
        family="llada-moe",
        config=published_config.llada_moe,
        names_mask=False,
        adapted=LAYER_MATRICES[:4],
    ),
}


def shallower(likeness: Likeness, layers: int) -> Likeness:
    """Return the likeness with its first `layers` layers only.

    Raises BadInputError unless the model has that many layers, one of them with experts if it has any.
    """
    full = likeness.dimensions
    if not 1 <= layers <= full.layers:
        raise BadInputError(f"{layers} layers", expected=f"1 to {full.layers}", remedy="correct the number of layers")
    moe = full.moe
    if moe is not None:
        moe = msgspec.structs.replace(moe, dense_layers=[i for i in moe.dense_layers if i < layers])
    sizes = msgspec.structs.replace(full, layers=layers, moe=moe)
    for received, expected in reasons_against_network(sizes):
        raise BadInputError(received, expected=expected, remedy="take more layers")
    return replace(likeness, dimensions=sizes)


def config_from_likeness(likeness: Likeness) -> dict[str, Any]:
    """Return the content of config.json."""
    config = likeness.config(likeness.dimensions)
    config |= {"bos_token_id": likeness.eos, "eos_token_id": likeness.eos, "pad_token_id": likeness.eos}
    if likeness.names_mask:
        config["mask_token_id"] = likeness.mask
    if likeness.tied:
        config[FAMILIES[likeness.family].tied] = True
    return config


def generation_config_from_likeness(likeness: Likeness) -> dict[str, Any] | None:
    """Return the content of generation_config.json, or None if config.json has the only end token."""
    return {"eos_token_id": [*likeness.ends, likeness.eos]} if likeness.ends else None
