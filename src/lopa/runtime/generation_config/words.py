# ruff: noqa
from lopa.runtime.plan.choices import *
from lopa.runtime.plan.choices import (
    DEFAULT_DISTANCE_PENALTY as DISTANCE_PENALTY,
    DEFAULT_ENTROPY_THRESHOLD as ENTROPY_THRESHOLD,
    MAX_AUTO_BRANCHES as MOST_AUTO_BRANCHES,
    MAX_BRANCHES as MOST_BRANCHES,
    MAX_ENTROPY as MOST_ENTROPY,
    MAX_GRAMMAR_CHARACTERS as MOST_GRAMMAR_CHARACTERS,
    MAX_POSITIONS as MOST_POSITIONS,
    MAX_STEPS as MOST_STEPS,
    MAX_STOP_CHARACTERS as MOST_STOP_CHARACTERS,
    MAX_STOPS as MOST_STOPS,
    MAX_TEMPERATURE as MOST_TEMPERATURE,
    MAX_TOP_K as MOST_TOP_K,
    MIN_TEMPERATURE as LEAST_TEMPERATURE,
)
from lopa.runtime.plan.choices import Alg, Alignment, Cache, Confidence, StrategyName, Window

Strategy = StrategyName.__args__[0]
ENTROPY_BOUND, PER_STEP, FACTOR, KL_THRESHOLD, ALG = 0.2, 2, 1.0, 0.01, "entropy"
CONFIDENCE_OF_ALG = {
    "origin": "probability",
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "neg_entropy",
}
