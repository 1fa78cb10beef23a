"""Likenesses small enough for tests to create, export and run: one of Dream, and one per family."""

from dataclasses import replace

import msgspec
from tools.checkpoint.likeness import LIKENESSES, Likeness

from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions

MINIATURE = Likeness(
    ModelDimensions(
        vocab_size=640,
        hidden_size=64,
        intermediate_size=160,
        layers=2,
        heads=4,
        kv_heads=2,
        head_size=16,
        max_positions=512,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
    ),
    mask=639,
    eos=600,
    bos=601,
)


def _fewer(moe: MixtureOfExperts) -> MixtureOfExperts:
    """Return 8 small experts with the features of `moe`, of which each token has 2."""
    return msgspec.structs.replace(
        moe,
        experts=8,
        experts_per_token=2,
        expert_size=32,
        shared_size=32 if moe.shared_size else 0,
        groups=4 if moe.groups > 1 else 1,
        groups_per_token=2 if moe.groups > 1 else 1,
    )


def _smaller(likeness: Likeness) -> Likeness:
    """Return a likeness with MINIATURE's sizes and ids, and the features of its own layers."""
    full = likeness.dimensions
    sizes = msgspec.structs.replace(
        MINIATURE.dimensions,
        kv_heads=4 if full.kv_heads == full.heads else 2,
        # The head size need not be hidden_size / heads, if that also holds for the published models.
        head_size=24 if full.qk_norm else 16,
        rope_theta=full.rope_theta,
        rms_norm_eps=full.rms_norm_eps,
        qkv_bias=full.qkv_bias,
        qk_norm=full.qk_norm,
        partial_rotary_size=None if full.partial_rotary_size is None else 12,
        moe=None if full.moe is None else _fewer(full.moe),
    )
    if likeness.family == "llada-moe":  # its config.json has no head size, and no dense size without dense layers
        sizes = msgspec.structs.replace(sizes, head_size=16, intermediate_size=32)
    return replace(
        likeness,
        dimensions=sizes,
        # The family's default id needs this vocabulary size.
        mask=likeness.mask if likeness.mask < sizes.vocab_size else 639,
        eos=likeness.eos if likeness.eos < sizes.vocab_size else 600,
        bos=None if likeness.bos is None else likeness.bos if likeness.bos < sizes.vocab_size else 601,
        ends=tuple(range(602, 602 + len(likeness.ends))),
        names_mask=likeness.names_mask or likeness.family == "wedlm",
    )


MINIATURES: dict[str, Likeness] = {
    likeness.family: _smaller(likeness) for name, likeness in LIKENESSES.items() if name != "diffucoder-7b"
}
"""Miniatures by family."""
