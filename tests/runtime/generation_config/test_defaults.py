"""Defaults of a bundle or server: any option may have one, and none makes a request fail."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.random_configs import random_config

from lopa.runtime import Decoder
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import (
    DEFAULT_OPTIONS,
    PACKAGE_DEFAULTS,
    GenerationConfig,
    checked_defaults,
    merged_options,
    options_from_defaults,
    resolve,
)
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import STRATEGIES, Option, Strategy, register_strategy

OWN: dict[str, Any] = {
    "block_size": 32,
    "skip_threshold": 0.9,
    "strategy": "lopa",
    "cache": "blocks",
    "sub_block": None,
    "block_steps": None,
}
"""Options of a model, as in `decoding` of a manifest."""


@pytest.mark.parametrize(
    ("defaults", "requested", "dropped"),
    [
        ({"strategy": "eb", "gamma": 0.3, "branches": 4, "temperature": 0.8}, {"strategy": "d2f"},
         ["gamma", "branches"]),
        ({"strategy": "eb", "gamma": 0.3, "branches": 4}, {"strategy": "lopa"}, ["gamma"]),
        ({"strategy": "threshold", "cache": "sub_block", "sub_block": 8}, {"strategy": "d2f"}, ["cache"]),
        ({"strategy": "wino", "remask_limit": 5}, {"strategy": "d2f"}, ["remask_limit"]),
        ({"strategy": "d2f", "speculative": True, "branches": 2}, {"regex": "[0-9]+"}, ["speculative", "branches"]),
        ({"remask_threshold": 0.5, "remask_limit": 5}, {"json_schema": {"type": "object"}},
         ["remask_threshold", "remask_limit"]),
        ({"stop_at_eos": False, "temperature": 0.5}, {"grammar": "start: /a/"}, ["stop_at_eos"]),
        ({"unmask_first_masked": True, "max_new_tokens": 64}, {"reference": True}, ["unmask_first_masked"]),
        ({"strategy": "klass", "kl_threshold": 0.1, "unmask_first_masked": True}, {"strategy": "vanilla"},
         ["kl_threshold", "unmask_first_masked"]),
    ],
)  # fmt: skip
def test_defaults_that_contradict_a_request_are_dropped(
    defaults: dict[str, Any], requested: dict[str, Any], dropped: list[str]
) -> None:
    assert planned({}, **defaults)
    found = merged_options(GenerationConfig.from_mapping(requested), own=OWN, defaults=defaults)
    for name, value in {**defaults, **requested}.items():
        if name in dropped:
            assert found[name] == PACKAGE_DEFAULTS.get(name), name
        elif name != "json_schema":  # kept as text
            assert found[name] == value, name


def test_the_default_strategy_is_not_dropped() -> None:
    for requested in ({"branches": 4}, {"gamma": 0.2}):
        with pytest.raises(BadInputError, match="with strategy 'd2f'"):
            planned({"strategy": "d2f", "skip_threshold": 0.8}, **requested)
    with pytest.raises(BadInputError, match="unknown option"):
        planned({"strategy": "d2f"}, gama=1)
    with pytest.raises(BadInputError, match="json_schema"):
        planned({"speculative": True, "strategy": "d2f"}, json_schema="{oops")
    for defaults in ({"gama": 1}, {"top_k": -1}):
        with pytest.raises(BadInputError, match=r"gama|top_k"):
            planned(defaults)


def test_a_default_option_of_an_installed_strategy() -> None:
    votes = Option(name="votes", help="Branches that have to agree.", default=2, min=1)
    register_strategy(Strategy(name="other_for_defaults", summary="a strategy for tests", options=(votes,)))
    defaults = {"strategy": "other_for_defaults", "strategy_options": {"votes": 4}}
    kept = options_from_defaults(checked_defaults(defaults))
    assert planned(kept).own == {"votes": 4}
    assert planned(kept, strategy_options={"votes": 5}).own == {"votes": 5}
    assert planned(kept, strategy="d2f").own == {}


def test_random_defaults_and_requests(tiny_bundle: Path) -> None:
    """Requested options stay unchanged. Every default either applies or contradicts the request."""
    rng = np.random.default_rng(11)
    dropped = 0
    with Decoder.open(tiny_bundle, ["numpy"]) as decoder:
        own = decoder.bundle.manifest.decoding.options()
        for _ in range(120):
            default, other = (random_config(rng, decoder).requested() for _ in range(2))
            defaults = {name: default[name] for name in DEFAULT_OPTIONS if name in default}
            defaults = {name: value for name, value in defaults.items() if name == "strategy" or rng.random() < 0.7}
            names = [name for name in other if rng.random() < 0.3] + ["strategy"]
            requested = GenerationConfig(**{name: other[name] for name in names})
            try:
                alone = merged_options(requested, own=own)
            except BadInputError:
                continue
            found = merged_options(requested, own=own, defaults=defaults)
            # Dream's own loop has one block, regardless of these options.
            fixed = ("block_size", "cache") if STRATEGIES[found["strategy"]].whole else ()
            assert all(found[name] == alone[name] for name in names if name not in fixed)
            held = {name: value for name, value in defaults.items() if name not in names and name not in fixed}
            for name, value in held.items():
                if found[name] != value:
                    with pytest.raises(BadInputError):
                        resolve(GenerationConfig.from_mapping({**found, name: value}))
                    dropped += 1
    assert dropped > 20


def planned(defaults: dict[str, Any], **requested: Any) -> DecodingParams:
    return resolve(GenerationConfig.from_mapping(requested), own=OWN, defaults=defaults)
