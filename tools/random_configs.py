"""Random decoding options and short random prompts: what a mix of requests is made of. Does not decode."""

import json
from functools import cache
from typing import Any, get_args

import numpy as np

from lopa.runtime.contract import TOP_K
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import TRAITS, WHOLE_CACHES, GenerationConfig, Strategy, Window
from lopa.runtime.generation_config.words import Confidence
from lopa.tiny import EVAL

_STRATEGIES: tuple[Strategy, ...] = ("lopa", "lopa", "lopa", *TRAITS)
_WINDOWS: tuple[Window, ...] = ("full", "block_causal")
_CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)


def random_config(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Any strategy, blocks, caches, window, confidence, thresholds, draws and stops, for at most 48 positions."""
    strategy = _STRATEGIES[int(rng.integers(len(_STRATEGIES)))]
    drawn = rng.random() < 0.4
    block_size = int(rng.choice([4, 8, 16, 32]))
    window = _WINDOWS[int(rng.integers(len(_WINDOWS)))]
    most_candidates = 40 if decoder.bundle.manifest.with_logits else TOP_K
    if TRAITS[strategy].whole:
        window = "full"
    blocks = _blocks(rng, strategy, block_size, window)
    published = TRAITS[strategy].doubt_threshold is None and bool(rng.random() < 0.2)
    taking_back = {} if published or blocks.get("cache") == "sub_block" else _take_back(rng, strategy)
    return decoder.config(
        strategy=strategy,
        **blocks,
        **_own_options(rng, strategy),
        **taking_back,
        decide_frontier=not published and "decide_frontier" in TRAITS[strategy].own and bool(rng.random() < 0.2),
        branches=int(rng.integers(1, 6)) if TRAITS[strategy].looks_ahead else None,
        block_size=block_size,
        block_add_threshold=float(rng.choice([0.1, 0.3, 0.7])),
        decoded_token_threshold=float(rng.choice([0.5, 0.95])),
        skip_threshold=float(rng.choice([0.5, 0.8, 0.9, 0.97])),
        confidence=_CONFIDENCES[int(rng.integers(len(_CONFIDENCES)))],
        window=window,
        max_new_tokens=int(rng.integers(1, 49)),
        temperature=float(rng.choice([0.3, 1.0, 2.0])) if drawn else 0.0,
        top_k=int(rng.integers(1, most_candidates + 1)) if drawn and rng.random() < 0.5 else None,
        top_p=float(rng.uniform(0.3, 1.0)) if drawn and rng.random() < 0.5 else None,
        seed=int(rng.integers(0, 1000)),
        stop=("=",) if not drawn and rng.random() < 0.3 else (),
        stop_at_eos=bool(rng.random() < 0.8),
        drop_after_eos=bool(rng.random() < 0.5),
        published=published,
    )


def _blocks(rng: np.random.Generator, strategy: Strategy, block_size: int, window: str) -> dict[str, Any]:
    """Where blocks begin, how they are decided, and what is kept of them: what goes with the rest."""
    if TRAITS[strategy].whole:
        return {"alignment": "prompt", "sub_block": None}
    alignment = str(rng.choice(["prompt", "absolute"], p=[0.7, 0.3]))
    sub_block = int(rng.choice([2, block_size // 2, block_size])) if rng.random() < 0.3 else None
    if TRAITS[strategy].pipelined:
        return {"alignment": alignment, "sub_block": sub_block, "block_steps": None, "cache": "blocks"}
    whole = WHOLE_CACHES if (alignment, window) == ("prompt", "full") else ()
    caches = [
        "blocks",
        *whole,
        *(["sub_block"] if sub_block is not None and TRAITS[strategy].doubt_threshold is None else []),
    ]
    return {
        "alignment": alignment,
        "sub_block": sub_block,
        "block_steps": int(rng.integers(1, block_size + 1))
        if TRAITS[strategy].block_steps and rng.random() < 0.3
        else None,
        "cache": str(rng.choice(caches)),
    }


def _own_options(rng: np.random.Generator, strategy: Strategy) -> dict[str, Any]:
    """Some of the options that only this strategy has."""
    values = {
        "gamma": float(rng.choice([0.0, 0.1, 0.4, np.inf])),
        "per_step": int(rng.integers(1, 6)),
        "factor": float(rng.choice([0.3, 1.0])),
        "kl_threshold": float(rng.choice([0.001, 0.1])),
        "alg": str(rng.choice(["origin", "maskgit_plus", "topk_margin", "entropy"])),
        "steps": int(rng.integers(1, 40)),
        "alg_temp": float(rng.choice([0.0, 0.5])),
    }
    return {name: value for name, value in values.items() if name in TRAITS[strategy].own and rng.random() < 0.7}


def _take_back(rng: np.random.Generator, strategy: Strategy) -> dict[str, Any]:
    """Some of the options of what decided positions are taken back by."""
    if "take_back_threshold" not in TRAITS[strategy].own or rng.random() < 0.6:
        return {}
    return {"take_back_threshold": float(rng.choice([0.3, 0.9])), "take_back_limit": 5 if rng.random() < 0.5 else None}


def random_prompt(rng: np.random.Generator, decoder: Decoder) -> tuple[int, ...]:
    """The ids of an evaluation prompt, whole or its beginning: at least 3."""
    ids = decoder.tokenizer.encode(str(rng.choice(_prompts())), add_bos=True)
    return tuple(ids[: int(rng.integers(3, len(ids) + 1))]) if rng.random() < 0.5 else tuple(ids)


@cache
def _prompts() -> tuple[str, ...]:
    return tuple(json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines())
