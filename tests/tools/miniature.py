"""A likeness so small that a test can make, export and run its checkpoint."""

from tools.checkpoint.likeness import Likeness

from lopa.runtime.bundle.manifest import ModelDimensions

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
