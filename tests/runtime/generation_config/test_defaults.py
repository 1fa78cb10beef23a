"""Defaults of a bundle or a server: any option can be one, and a request never fails because of one."""

import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.random_configs import random_config

from lopa.runtime import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import (
    DEFAULT_OPTIONS,
    TRAITS,
    GenerationConfig,
    checked_defaults,
    config_with_defaults,
    left_out_for,
    options_from_defaults,
)

OWN: dict[str, Any] = {
    "block_size": 32,
    "skip_threshold": 0.9,
    "strategy": "lopa",
    "cache": "blocks",
    "sub_block": None,
    "block_steps": None,
}
"""Options of a model, as `decoding` in a manifest has them."""
OF_STRATEGIES: dict[str, dict[str, Any]] = {
    "lopa": {"branches": "auto", "shared_rows": True, "block_size": 16},
    "d2f": {"lossless": True, "branches": 3, "time_limit": 5.0},
    "threshold": {"skip_threshold": 0.8, "cache": "sub_block", "sub_block": 8, "block_steps": 4},
    "vanilla": {"block_steps": 8, "cache": "dual", "max_new_tokens": 64},
    "sequential": {"cache": "none", "temperature": 0.7, "top_k": 4, "top_p": 0.9},
    "eb": {"gamma": math.inf, "branches": 4, "decide_frontier": True},
    "wino": {"take_back_threshold": 0.7, "take_back_limit": 9, "stop": ("\n\n", "###")},
    "dream": {"alg": "topk_margin", "steps": 12, "alg_temp": 0.1},
    "top_n": {"per_step": 3, "stop_at_eos": False},
    "factor": {"factor": 1.5, "drop_after_eos": False, "window": "block_causal"},
    "klass": {"kl_threshold": 0.02, "confidence": "margin", "alignment": "absolute"},
    "credit": {"block_add_threshold": 0.3, "decoded_token_threshold": 0.8},
    "local_leap": {"decide_frontier": True},
}


@pytest.mark.parametrize("strategy", TRAITS)
def test_every_strategy_and_its_options_can_be_the_default(strategy: str) -> None:
    defaults = {"strategy": strategy, **OF_STRATEGIES[strategy]}
    kept = options_from_defaults(checked_defaults(defaults))
    assert config_with_defaults(OWN, kept, {}) == GenerationConfig(**{**OWN, **left_out_for(strategy), **defaults})


def test_every_option_can_have_a_default_but_those_of_one_request() -> None:
    used = {"strategy", *(name for options in OF_STRATEGIES.values() for name in options)}
    of_a_request = {"seed", "json_schema", "regex", "grammar", "logprobs", "special_tokens", "published"}
    sliding = {"entropy_threshold", "distance_penalty"}
    assert used | sliding == set(DEFAULT_OPTIONS)
    assert {option.name for option in fields(GenerationConfig)} - set(DEFAULT_OPTIONS) == of_a_request
    for name in sorted(of_a_request | {"gama"}):
        with pytest.raises(BadInputError) as caught:
            checked_defaults({name: 1})
        assert name in caught.value.received
        assert "take_back_limit" in caught.value.expected


def test_without_defaults_a_config_is_what_it_was() -> None:
    rng = np.random.default_rng(3)
    for strategy in (None, *TRAITS):
        named = {} if strategy is None else {"strategy": strategy}
        requested = {**named, "max_new_tokens": int(rng.integers(1, 99)), "skip_threshold": float(rng.random())}
        before = GenerationConfig.from_mapping({**OWN, **left_out_for(strategy), **requested})
        assert config_with_defaults(OWN, {}, requested) == before


@pytest.mark.parametrize(
    ("defaults", "requested", "left_out"),
    [
        ({"strategy": "eb", "gamma": 0.3, "branches": 4, "temperature": 0.8}, {"strategy": "d2f"},
         ["gamma", "branches"]),
        ({"strategy": "eb", "gamma": 0.3, "branches": 4}, {"strategy": "lopa"}, ["gamma"]),
        ({"strategy": "threshold", "cache": "sub_block", "sub_block": 8}, {"strategy": "d2f"}, ["cache"]),
        ({"strategy": "wino", "take_back_limit": 5}, {"strategy": "d2f"}, ["take_back_limit"]),
        ({"strategy": "d2f", "lossless": True, "branches": 2}, {"regex": "[0-9]+"}, ["lossless", "branches"]),
        ({"take_back_threshold": 0.5, "take_back_limit": 5}, {"json_schema": {"type": "object"}},
         ["take_back_threshold", "take_back_limit"]),
        ({"stop_at_eos": False, "temperature": 0.5}, {"grammar": "start: /a/"}, ["stop_at_eos"]),
        ({"decide_frontier": True, "max_new_tokens": 64}, {"published": True}, ["decide_frontier"]),
        ({"strategy": "klass", "kl_threshold": 0.1, "decide_frontier": True}, {"strategy": "vanilla"},
         ["kl_threshold", "decide_frontier"]),
    ],
)  # fmt: skip
def test_what_does_not_go_with_a_request_is_left_out(
    defaults: dict[str, Any], requested: dict[str, Any], left_out: list[str]
) -> None:
    config, plain = config_with_defaults(OWN, defaults, requested), GenerationConfig()
    assert GenerationConfig.from_mapping({**OWN, **defaults})
    for name, value in {**defaults, **requested}.items():
        if name in left_out:
            assert getattr(config, name) == getattr(plain, name), name
        elif name != "json_schema":  # which is kept as text
            assert getattr(config, name) == value, name


def test_the_default_strategy_does_not_give_way() -> None:
    for requested in ({"branches": 4}, {"gamma": 0.2}):
        with pytest.raises(BadInputError, match="with strategy 'd2f'"):
            config_with_defaults(OWN, {"strategy": "d2f", "skip_threshold": 0.8}, requested)
    with pytest.raises(BadInputError, match="unknown option"):
        config_with_defaults(OWN, {"strategy": "d2f"}, {"gama": 1})
    with pytest.raises(BadInputError, match="json_schema"):
        config_with_defaults(OWN, {"lossless": True, "strategy": "d2f"}, {"json_schema": "{oops"})


def test_random_defaults_and_requests(tiny_bundle: Path) -> None:
    """A request holds as it is; every default holds too, or cannot be used beside it."""
    rng = np.random.default_rng(11)
    left_out = 0
    with Decoder.open(tiny_bundle, ["numpy"]) as decoder:
        own = decoder.bundle.manifest.decoding.options()
        for _ in range(120):
            default, other = (asdict(random_config(rng, decoder)) for _ in range(2))
            defaults = {name: default[name] for name in DEFAULT_OPTIONS if default[name] is not None}
            defaults = {name: value for name, value in defaults.items() if name == "strategy" or rng.random() < 0.7}
            names = [name for name in other if rng.random() < 0.3] + ["strategy"]
            requested = {name: other[name] for name in names}
            try:
                alone = GenerationConfig(**{**own, **left_out_for(requested["strategy"]), **requested})
            except BadInputError:
                continue
            config = config_with_defaults(own, defaults, requested)
            # Dream's own loop has one block and ranks as alg says, whatever these options are.
            fixed = ("block_size", "cache", "confidence") if config.traits.whole else ()
            assert all(getattr(config, name) == getattr(alone, name) for name in requested if name not in fixed)
            held = {name: value for name, value in defaults.items() if name not in requested and name not in fixed}
            for name, value in held.items():
                if getattr(config, name) != value:
                    with pytest.raises(BadInputError):
                        GenerationConfig(**{**asdict(config), name: value})
                    left_out += 1
    assert left_out > 20
