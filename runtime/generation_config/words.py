"""Words and bounds of the decoding options. Knows no record and no rule."""

from typing import Literal

Strategy = Literal["lopa", "d2f", "threshold", "vanilla", "sequential"]
Confidence = Literal["neg_entropy", "probability", "margin"]
Window = Literal["full", "block_causal", "causal"]
Alignment = Literal["prompt", "absolute", "sliding"]
Cache = Literal["blocks", "none", "prefix", "dual", "sub_block"]
WHOLE_CACHES = ("none", "prefix", "dual")
"""With which all positions of the answer are in the sequence from the start."""

DEFAULT_BRANCHES = 4
"""On accelerators, and of the published loop; runtime/branch_choice.py has the default of every device."""
MOST_AUTO_BRANCHES = 8
MOST_BRANCHES = 64
"""Each takes a window of the model's positions squared; no measured decode gained anything beyond 8."""
MOST_POSITIONS = 2**31 - 1
"""Of a size in positions, before a model's own limit is known."""
ENTROPY_THRESHOLD, DISTANCE_PENALTY = 0.4, 0.02
"""Of sliding blocks where nothing else is asked: WeDLM's."""
MOST_ENTROPY = 1e3
"""Nats; the logarithm of a vocabulary is below 20."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1e3
"""Of draws: logits divided by less would leave float32, by more are all the same."""
MOST_TOP_K = 2**24
MOST_STOPS, MOST_STOP_CHARACTERS = 64, 1024
PUBLISHED_STEP_LIMIT = 1001
"""The published D2F loop gives up after this step; its LoPA loop would go on for ever (docs/lopa.md, quirk 3)."""
