"""Words and bounds of the decoding options. Knows no record and no rule."""

from collections.abc import Mapping
from typing import Literal

Strategy = Literal[
    "lopa",
    "d2f",
    "threshold",
    "vanilla",
    "sequential",
    "eb",
    "wino",
    "dream",
    "top_n",
    "factor",
    "klass",
    "credit",
    "local_leap",
]
Alg = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]
Confidence = Literal["neg_entropy", "probability", "margin"]
Window = Literal["full", "block_causal", "causal"]
Alignment = Literal["prompt", "absolute", "sliding"]
Cache = Literal["blocks", "none", "prefix", "dual", "sub_block"]
CONFIDENCE_OF_ALG: Mapping[Alg, Confidence] = {
    "origin": "probability",
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "neg_entropy",
}
"""Of Dream's names for what ranks positions; origin ranks none."""
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
ENTROPY_BOUND = 0.2
"""Nats, where gamma is not given: on the embedded model as good as a threshold of 0.95, in fewer steps."""
PER_STEP = 2
FACTOR = 1.0
"""Fast-dLLM's."""
KL_THRESHOLD = 0.01
"""KLASS's."""
ALG: Alg = "entropy"
MOST_STEPS = 2**16
"""Of Dream's schedule, which is looked through for steps that decide something."""
MOST_ENTROPY = 1e3
"""Nats; the logarithm of a vocabulary is below 20."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-3, 1e3
"""Of draws: logits divided by less would leave float32, by more are all the same."""
MOST_TOP_K = 2**24
MOST_STOPS, MOST_STOP_CHARACTERS = 64, 1024
GRAMMARS = ("json_schema", "regex", "grammar")
"""Options that ask for an answer of some form; one at a time."""
MOST_GRAMMAR_CHARACTERS = 2**18
PUBLISHED_STEP_LIMIT = 1001
"""The published D2F loop gives up after this step; its LoPA loop would go on for ever (docs/lopa.md, quirk 3)."""
