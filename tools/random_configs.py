"""Random decoding options and short random prompts for mixed batches of requests."""

import json
from functools import cache
from typing import Any, get_args

import numpy as np

from lopa.runtime.contract import TOP_K
from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import WHOLE_CACHES, Attention
from lopa.runtime.options.option import Confidence
from lopa.runtime.strategy import STRATEGIES, Strategy
from lopa.tiny import EVAL

_NAMES = ("lopa", "lopa", "lopa", *(name for name, strategy in STRATEGIES.items() if not strategy.canvas))
_WINDOWS: tuple[Attention, ...] = ("full", "block_causal")
_CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)


def random_config(rng: np.random.Generator, decoder: Decoder) -> GenerationConfig:
    """Return random options: strategy, blocks, caches, attention, confidence, thresholds, sampling and stops.

    Answers have at most 48 positions.
    """
    strategy = STRATEGIES[_NAMES[int(rng.integers(len(_NAMES)))]]
    sampled = rng.random() < 0.4
    block_size = int(rng.choice([4, 8, 16, 32]))
    attention = _WINDOWS[int(rng.integers(len(_WINDOWS)))]
    max_top_k = 40 if decoder.bundle.manifest.with_logits else TOP_K
    if strategy.whole:
        attention = "full"
    blocks = _blocks(rng, strategy, block_size, attention)
    published = not strategy.remask_threshold and bool(rng.random() < 0.2)
    remasking = {} if published or blocks.get("cache") == "sub_block" else _remask_options(rng, strategy)
    return decoder.config(
        strategy=strategy.name,
        **blocks,
        **_own_options(rng, strategy),
        **remasking,
        **(
            {}
            if published or remasking or blocks.get("cache") == "sub_block"
            else _edit_options(rng, strategy, decoder)
        ),
        unmask_first_masked=not published and strategy.unmasks_first and bool(rng.random() < 0.2),
        branches=int(rng.integers(1, 6)) if strategy.looks_ahead else None,
        block_size=block_size,
        block_add_threshold=float(rng.choice([0.1, 0.3, 0.7])),
        decoded_token_threshold=float(rng.choice([0.5, 0.95])),
        skip_threshold=float(rng.choice([0.5, 0.8, 0.9, 0.97])),
        confidence=_CONFIDENCES[int(rng.integers(len(_CONFIDENCES)))],
        attention=attention,
        max_new_tokens=int(rng.integers(1, 49)),
        temperature=float(rng.choice([0.3, 1.0, 2.0])) if sampled else 0.0,
        top_k=int(rng.integers(1, max_top_k + 1)) if sampled and rng.random() < 0.5 else None,
        top_p=float(rng.uniform(0.3, 1.0)) if sampled and rng.random() < 0.5 else None,
        seed=int(rng.integers(0, 1000)),
        stop=("=",) if not sampled and rng.random() < 0.3 else (),
        stop_at_eos=bool(rng.random() < 0.8),
        drop_after_eos=bool(rng.random() < 0.5),
        reference=published,
    )


def _blocks(rng: np.random.Generator, strategy: Strategy, block_size: int, attention: str) -> dict[str, Any]:
    """Return random options for block alignment, sub-blocks and caches that are valid together."""
    if strategy.whole:
        return {"alignment": "prompt", "sub_block": None}
    alignment = str(rng.choice(["prompt", "absolute"], p=[0.7, 0.3]))
    sub_block = int(rng.choice([2, block_size // 2, block_size])) if rng.random() < 0.3 else None
    if strategy.pipelined:
        return {"alignment": alignment, "sub_block": sub_block, "block_steps": None, "cache": "blocks"}
    whole = WHOLE_CACHES if (alignment, attention) == ("prompt", "full") else ()
    caches = [
        "blocks",
        *whole,
        *(["sub_block"] if sub_block is not None and not strategy.remask_threshold else []),
    ]
    return {
        "alignment": alignment,
        "sub_block": sub_block,
        "block_steps": int(rng.integers(1, block_size + 1)) if strategy.block_steps and rng.random() < 0.3 else None,
        "cache": str(rng.choice(caches)),
    }


def _own_options(rng: np.random.Generator, strategy: Strategy) -> dict[str, Any]:
    """Return random values for some of the strategy's own options."""
    values = {
        "gamma": float(rng.choice([0.0, 0.1, 0.4, np.inf])),
        "tokens_per_step": int(rng.integers(1, 6)),
        "factor": float(rng.choice([0.3, 1.0])),
        "kl_threshold": float(rng.choice([0.001, 0.1])),
        "alg": str(rng.choice(["origin", "maskgit_plus", "topk_margin", "entropy"])),
        "steps": int(rng.integers(1, 40)),
        "alg_temp": float(rng.choice([0.0, 0.5])),
    }
    own = {option.name for option in strategy.options}
    return {name: value for name, value in values.items() if name in own and rng.random() < 0.7}


def _remask_options(rng: np.random.Generator, strategy: Strategy) -> dict[str, Any]:
    """Return random remasking options, or none."""
    if strategy.remask is None or rng.random() < 0.6:
        return {}
    return {"remask_threshold": float(rng.choice([0.3, 0.9])), "remask_limit": 5 if rng.random() < 0.5 else None}


def _edit_options(rng: np.random.Generator, strategy: Strategy, decoder: Decoder) -> dict[str, Any]:
    """Return random editing options, or none. Only models whose rows predict their own positions edit."""
    if decoder.bundle.manifest.prediction_shift or strategy.edit is None or rng.random() < 0.6:
        return {}
    return {"editing_threshold": float(rng.choice([0.0, 0.5, 0.9])), "editing_limit": int(rng.integers(0, 4))}


def random_prompt(rng: np.random.Generator, decoder: Decoder) -> tuple[int, ...]:
    """Return the ids of an evaluation prompt, whole or a prefix of at least 3."""
    ids = decoder.tokenizer.encode(str(rng.choice(_prompts())), add_bos=True)
    return tuple(ids[: int(rng.integers(3, len(ids) + 1))]) if rng.random() < 0.5 else tuple(ids)


@cache
def _prompts() -> tuple[str, ...]:
    return tuple(json.loads(line)["prompt"] for line in EVAL.read_text(encoding="utf-8").splitlines())
