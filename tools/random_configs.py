"""Random decoding options and short random prompts: what a mix of requests is made of. Does not decode."""

import json
from functools import cache

import numpy as np

from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig
from lopa.tiny import EVAL


def random_config(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Any strategy, window, confidence, thresholds, draws and stops, for an answer of at most 48 positions."""
    strategy = rng.choice(["lopa", "lopa", "lopa", "d2f", "threshold", "vanilla"])
    drawn = rng.random() < 0.4
    return decoder.config(
        strategy=str(strategy),
        branches=int(rng.integers(1, 6)) if strategy == "lopa" else None,
        block_size=int(rng.choice([4, 8, 16, 32])),
        block_add_threshold=float(rng.choice([0.1, 0.3, 0.7])),
        decoded_token_threshold=float(rng.choice([0.5, 0.95])),
        skip_threshold=float(rng.choice([0.5, 0.8, 0.9, 0.97])),
        confidence=str(rng.choice(["neg_entropy", "probability", "margin"])),
        window=str(rng.choice(["full", "block_causal"])),
        max_new_tokens=int(rng.integers(1, 49)),
        temperature=float(rng.choice([0.3, 1.0, 2.0])) if drawn else 0.0,
        top_k=int(rng.integers(1, 9)) if drawn and rng.random() < 0.5 else None,
        top_p=float(rng.uniform(0.3, 1.0)) if drawn and rng.random() < 0.5 else None,
        seed=int(rng.integers(0, 1000)),
        stop=("=",) if not drawn and rng.random() < 0.3 else (),
        stop_at_eos=bool(rng.random() < 0.8),
        drop_after_eos=bool(rng.random() < 0.5),
        published=bool(rng.random() < 0.2),
    )


def random_prompt(rng: np.random.Generator, decoder: Decoder) -> tuple[int, ...]:
    """The ids of an evaluation prompt, whole or its beginning: at least 3."""
    ids = decoder.tokenizer.encode(str(rng.choice(_prompts())), add_bos=True)
    return tuple(ids[: int(rng.integers(3, len(ids) + 1))]) if rng.random() < 0.5 else tuple(ids)


@cache
def _prompts() -> tuple[str, ...]:
    return tuple(json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines())
