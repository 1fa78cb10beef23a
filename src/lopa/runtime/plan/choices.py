"""Choices and bounds of the decoding options."""

from typing import Literal

StrategyName = (
    Literal[
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
    | str
)
"""Name of a strategy: one of the package's own, or one that was registered (lopa.runtime.strategy)."""
Alg = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]
Confidence = Literal["neg_entropy", "probability", "margin"]
Window = Literal["full", "block_causal", "causal"]
Alignment = Literal["prompt", "absolute", "sliding"]
Cache = Literal["blocks", "none", "prefix", "dual", "sub_block"]
SharedRows = Literal["never", "always", "auto"]
"""Whether rows that are equal on several branches are computed once; auto: where that is expected to be faster."""
WHOLE_CACHES = ("none", "prefix", "dual")
"""Caches with which all positions of the answer are in the sequence from the start."""

DEFAULT_BRANCHES = 4
"""Branches on accelerators and in the published loop; `branch_choice` has the default of every device."""
MAX_AUTO_BRANCHES = 8
MAX_BRANCHES = 64
"""A branch takes memory for a window of the model's positions squared; no measured decode gained beyond 8."""
MAX_POSITIONS = 2**31 - 1
"""Limit of sizes in positions, before a model's own limit is known."""
DEFAULT_ENTROPY_THRESHOLD, DEFAULT_DISTANCE_PENALTY = 0.4, 0.02
"""Defaults of sliding blocks, as in WeDLM."""
MAX_STEPS = 2**16
"""Limit of the steps of Dream's schedule, which is searched for steps that unmask something."""
MAX_ENTROPY = 1e3
"""Limit of entropies and divergences in nats; the logarithm of a vocabulary is below 20."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
"""Limits of a temperature that draws: logits divided by less would leave float32, by more are all alike."""
MAX_TOP_K = 2**24
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1024
GRAMMARS = ("json_schema", "regex", "grammar")
"""Options that constrain the answer's form; at most one is given."""
MAX_GRAMMAR_CHARACTERS = 2**18
PUBLISHED_STEP_LIMIT = 1001
"""Step after which the published D2F loop gives up; its LoPA loop would go on for ever (docs/reference/algorithm.md,
quirk 3)."""
