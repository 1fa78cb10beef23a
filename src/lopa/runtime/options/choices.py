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
"""Name of a built-in or registered strategy (lopa.runtime.strategy)."""
Alg = Literal["origin", "maskgit_plus", "topk_margin", "entropy"]
Confidence = Literal["neg_entropy", "probability", "margin"]
Attention = Literal["full", "block_causal", "causal"]
Alignment = Literal["prompt", "absolute", "sliding"]
Cache = Literal["blocks", "none", "prefix", "dual", "sub_block"]
SharedRows = Literal["never", "always", "auto"]
"""Rule for computing equal rows of several branches once: never, always, or (auto) if it is expected to be faster."""
WHOLE_CACHES = ("none", "prefix", "dual")
"""Caches for which the sequence contains the whole answer from the start."""

DEFAULT_BRANCHES = 4
"""Default number of branches on accelerators and in reference mode (see `branch_choice`)."""
MAX_AUTO_BRANCHES = 8
MAX_BRANCHES = 64
"""Maximum number of branches. Each takes memory quadratic in its window. No measured decode was faster with more than
8."""
MAX_POSITIONS = 2**31 - 1
"""Maximum of any number of positions. A model's own limit is checked later."""
MAX_STEPS = 2**16
"""Upper limit of the steps of Dream's schedule."""
MAX_ENTROPY = 1e3
"""Upper limit of entropies and divergences in nats. The logarithm of a vocabulary's size is below 20."""
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3
"""Limits of positive temperatures. Lower ones overflow float32; higher ones make all tokens equally likely."""
MAX_TOP_K = 2**24
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1024
GRAMMARS = ("json_schema", "regex", "grammar")
"""Options that constrain the answer by a grammar; at most one may be set."""
CONSTRAINTS = (*GRAMMARS, "reasoning_budget")
"""Options whose answers are read by a grammar, any text included."""
MAX_GRAMMAR_CHARACTERS = 2**18
MAX_CHOICES, MAX_CHOICE_LENGTH = 256, 4096
"""Limits of the option `choices`: their number, and the characters or tokens of each."""
PUBLISHED_STEP_LIMIT = 1001
"""Steps after which the published D2F loop stops. Its LoPA loop may never end (docs/reference/algorithm.md, quirk
3)."""
