"""GenerationConfig stores the requested options, and `resolve` makes the parameters."""

import dataclasses
import inspect
import math
import pickle
import re
from typing import Any, Literal

import numpy as np
import pytest

from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import OPTIONS, PACKAGE_DEFAULTS, GenerationConfig, resolve
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import STRATEGIES, Option, Strategy, register_strategy


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"strategy": "d2f", "branches": 3}, "cannot combine branches 3 with strategy 'd2f'"),
        ({"speculative": True}, "cannot combine speculative with strategy 'lopa'"),
        ({"speculative": True, "strategy": "vanilla", "reference": True},
         "cannot combine speculative with reference mode"),
        ({"speculative": True, "strategy": "d2f", "branches": "auto"},
         "cannot combine speculative with branches 'auto'"),
        ({"speculative": True, "strategy": "threshold", "alignment": "sliding", "attention": "causal"},
         "cannot combine speculative with alignment 'sliding'"),
        ({3: 4, None: 5}, "unknown option 3, None"),
        ({"max_new_tokens": 10**9000}, "invalid max_new_tokens a value of type int"),
        ({"branches": np.array([1, 2])}, "invalid branches array([1, 2])"),
        ({"regex": "a", "json_schema": {}}, "more than one grammar: json_schema and regex"),
        ({"regex": "a", "reference": True}, "cannot use regex in reference mode"),
        ({"regex": "a", "stop_at_eos": False}, "cannot combine regex with stop_at_eos off"),
        ({"regex": "a", "speculative": True, "strategy": "vanilla"}, "cannot combine speculative with a grammar"),
        ({"regex": "a", "anytime": True}, "cannot combine anytime with regex"),
        ({"regex": "a", "choices": ["a"]}, "cannot combine choices with regex"),
        ({"reasoning_budget": 4, "strategy": "wino"}, "cannot combine reasoning_budget with remasking"),
        ({"seed": 2**63}, f"invalid seed {2**63}"),
        ({"stop": ["a"] * 65}, f"invalid stop {str(['a'] * 20)[:80]}..."),
        ({"time_limit": 0}, "invalid time_limit 0"),
        ({"remask_limit": 3}, "remask_limit 3 without remask_threshold"),
        ({"editing_limit": 3}, "editing_limit 3 without editing_threshold"),
        ({"strategy": "dream", "editing_threshold": 0.5}, "cannot combine editing_threshold 0.5 with strategy 'dream'"),
        ({"editing_threshold": 0.0, "remask_threshold": 0.5}, "cannot combine editing_threshold with remask_threshold"),
        ({"strategy": "threshold", "editing_threshold": 0.5, "alignment": "sliding", "attention": "causal"},
         "cannot combine editing_threshold with alignment 'sliding'"),
        ({"strategy": "d2f", "editing_threshold": 1.0, "reference": True},
         "cannot combine editing_threshold with strategy 'd2f' and alignment 'prompt' in reference mode"),
        ({"eos_early_stop": True}, "cannot use eos_early_stop outside reference mode with alignment absolute"),
        ({"strategy": "vanilla", "remask_threshold": 0.5},
         "cannot combine remask_threshold 0.5 with strategy 'vanilla'"),
        ({"remask_threshold": 0.5, "reference": True}, "cannot combine remask_threshold with reference True"),
        ({"strategy": "threshold", "remask_threshold": 0.5, "alignment": "sliding", "attention": "causal"},
         "cannot combine remask_threshold with alignment 'sliding'"),
        ({"strategy": "wino", "cache": "sub_block", "sub_block": 8},
         "cannot combine strategy 'wino' with cache 'sub_block'"),
        ({"cache": "dual"}, "cannot combine cache 'dual' with strategy 'lopa'"),
        ({"block_steps": 4}, "cannot combine block_steps with strategy 'lopa'"),
        ({"sub_block": 0}, "invalid sub_block 0"),
        ({"block_steps": 9, "block_size": 8, "strategy": "vanilla"}, "invalid block_steps 9"),
        ({"cache": "none", "strategy": "threshold", "alignment": "absolute"},
         "cannot combine cache 'none' with alignment 'absolute' and attention 'full'"),
        ({"cache": "sub_block", "strategy": "threshold"}, "cache 'sub_block' without the option sub_block"),
        ({"gamma": 0.2}, "cannot combine gamma 0.2 with strategy 'lopa'"),
        ({"strategy": "dream", "sub_block": 4}, "cannot combine sub_block 4 with strategy 'dream'"),
        ({"strategy": "dream", "attention": "block_causal"},
         "cannot combine strategy 'dream' with alignment 'prompt' and attention 'block_causal'"),
    ],
)  # fmt: skip
def test_bad_combinations_and_long_values_are_rejected_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInputError) as caught:
        resolve(GenerationConfig.from_mapping(options))
    assert caught.value.received == named
    assert caught.value.exit_code == 2
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize("values", [None, 5, "seed", ["seed"], [("seed", 1)]])
def test_options_must_be_a_mapping(values: Any) -> None:
    with pytest.raises(BadInputError, match="options "):
        GenerationConfig.from_mapping(values)


def test_numpy_numbers_become_python_numbers() -> None:
    given: dict[str, Any] = {
        "branches": np.int64(3), "block_size": np.uint8(16), "max_new_tokens": np.int32(8), "seed": np.uint64(7),
        "temperature": np.float32(0.5), "top_k": np.int8(2), "top_p": np.float16(0.5), "time_limit": np.int64(3),
        "skip_threshold": np.float64(0.25), "stop_at_eos": np.bool_(False), "logprobs": np.True_,
        "strategy": np.str_("lopa"), "stop": [np.str_("x")],
    }  # fmt: skip
    config = GenerationConfig(**given)
    for name in given:
        value = getattr(config, name)
        assert type(value) in (int, float, bool, str, tuple)
        assert value == (("x",) if name == "stop" else given[name])
    assert type((config.stop or (None,))[0]) is str


def test_params_are_a_key() -> None:
    """Equal requests are decoded once, whatever their options."""
    biased = [resolve(GenerationConfig(logit_bias=biases)) for biases in ({23: -1.0}, {"23": -1}, {})]
    assert len({*biased}) == 2


def test_sampled_answers_without_a_seed_draw_one() -> None:
    assert len({resolve(GenerationConfig(temperature=0.5)).seed for _ in range(4)}) == 4
    assert resolve(GenerationConfig()).seed == 0
    assert resolve(GenerationConfig(seed=3, temperature=0.5)).seed == 3


def test_lookaheads_are_the_branches_besides_the_anchor() -> None:
    assert params(devices=["cuda:0"]).lookaheads == 3
    assert params().lookaheads == 0
    assert params(branches=8).lookaheads == 7
    assert params(strategy="vanilla", speculative=True).lookaheads == 1
    assert params(strategy="d2f", speculative=True, branches=1).lookaheads == 0
    for strategy in ("d2f", "threshold", "vanilla"):
        assert params(strategy=strategy, devices=["cuda:0"]).lookaheads == 0
    assert (params(branches="auto").branches, params(branches="auto").auto_branches) == (8, True)


SLIDING: dict[str, Any] = {"alignment": "sliding", "attention": "causal"}


def test_a_sliding_block_is_unmasked_by_its_score() -> None:
    found = params(**SLIDING)
    assert (found.entropy_threshold, found.distance_penalty) == (0.4, 0.02)
    found = params(**SLIDING, entropy_threshold=1, distance_penalty=0)
    assert (found.entropy_threshold, found.distance_penalty) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({**SLIDING, "attention": "full"}, "attention 'full' with alignment 'sliding'"),
        ({"attention": "causal"}, "attention 'causal' with alignment 'prompt'"),
        ({"entropy_threshold": 0.4}, "entropy_threshold 0.4 with alignment 'prompt'"),
        ({"alignment": "absolute", "distance_penalty": 0.0}, "distance_penalty 0.0 with alignment 'absolute'"),
        ({**SLIDING, "confidence": "margin"}, "confidence 'margin' with alignment 'sliding'"),
        ({**SLIDING, "sub_block": 4}, "sub_block 4 with alignment 'sliding'"),
        ({**SLIDING, "strategy": "threshold", "block_steps": 4}, "block_steps 4 with alignment 'sliding'"),
        ({**SLIDING, "strategy": "threshold", "cache": "none"}, "cache 'none' with alignment 'sliding'"),
        ({**SLIDING, "reference": True}, "reference True with alignment 'sliding'"),
    ],
)
def test_options_that_a_sliding_block_does_not_support_are_rejected(options: dict[str, Any], received: str) -> None:
    with pytest.raises(BadInputError, match=received):
        params(**options)


def has_option(strategy: Strategy, name: str) -> bool:
    if name.startswith("remask"):
        return strategy.remask is not None
    if name.startswith("editing"):
        return strategy.edit is not None
    return strategy.unmasks_first if name == "unmask_first_masked" else name in {each.name for each in strategy.options}


def test_options_of_other_strategies_are_rejected() -> None:
    values: dict[str, Any] = {
        "gamma": 0.3, "tokens_per_step": 2, "factor": 0.5, "kl_threshold": 0.1, "alg": "origin", "steps": 3,
        "alg_temp": 0.2, "remask_threshold": 0.5, "remask_limit": 3, "unmask_first_masked": True,
        "editing_threshold": 0.5, "editing_limit": 3, "entropy_bound": 0.3, "max_denoising_steps": 7, "t_max": 0.9,
        "t_min": 0.2, "stability_threshold": 2, "confidence_threshold": 0.1,
    }  # fmt: skip
    assert {option.name for strategy in STRATEGIES.values() for option in strategy.options} <= values.keys()
    for strategy in STRATEGIES.values():
        for name, value in values.items():
            if has_option(strategy, name):
                needed = {"remask_limit": {"remask_threshold": 0.5}, "editing_limit": {"editing_threshold": 0.5}}
                found = params(strategy=strategy.name, **{**needed.get(name, {}), name: value})
                assert (found.own[name] if name in found.own else getattr(found, name)) == value
                continue
            with pytest.raises(BadInputError, match=f"{name} .* with strategy '{strategy.name}'") as caught:
                params(strategy=strategy.name, **{name: value})
            assert name in caught.value.remedy


def test_the_entropy_bound_may_be_infinite() -> None:
    assert params(strategy="eb").own == {"gamma": 0.2}
    assert params(strategy="eb", gamma=math.inf).own["gamma"] == math.inf
    assert GenerationConfig(strategy="eb", gamma=np.float32(math.inf)).gamma == math.inf  # type: ignore[arg-type]
    assert params(strategy="eb").lookaheads == 0
    assert params(strategy="eb", branches=3).lookaheads == 2


def test_dream_decodes_the_whole_answer_as_one_block() -> None:
    config = GenerationConfig(strategy="dream", max_new_tokens=100, alg="topk_margin", block_size=32, cache="blocks")
    found = resolve(config)
    assert (found.block_size, found.cache, found.confidence, found.own["steps"]) == (100, "none", "margin", 100)
    longer = resolve(dataclasses.replace(config, max_new_tokens=120, alg="maskgit_plus", steps=7))
    assert (longer.step_limit, params(strategy="d2f", max_new_tokens=7).step_limit) == (7, 1001)
    assert (longer.block_size, longer.confidence, longer.own["steps"]) == (120, "probability", 7)
    assert params(strategy="dream", max_new_tokens=2**17).own["steps"] == 2**16
    assert params(strategy="dream", top_k=0).draws_from_logits
    assert not params(strategy="threshold", top_k=0).draws_from_logits


@pytest.mark.parametrize("strategy", [name for name, each in STRATEGIES.items() if not each.canvas])
def test_a_models_options_are_dropped_if_the_strategy_lacks_them(strategy: str) -> None:
    """A model's own loop has sub-blocks, steps and a cache of them. Any other strategy can still be requested."""
    own = {"strategy": "threshold", "cache": "sub_block", "sub_block": 8, "block_steps": 4}
    found = resolve(GenerationConfig(strategy=strategy), own=own)
    kept = strategy in ("threshold", "vanilla", "sequential", "top_n")
    assert found.cache == ("sub_block" if kept else "none" if strategy == "dream" else "blocks")
    assert found.block_steps == (4 if STRATEGIES[strategy].block_steps else found.block_size)
    assert found.sub_block == (found.block_size if strategy == "dream" else 8)


def test_editing_options() -> None:
    assert not params().edits
    assert params(editing_threshold=0.0).edits, "0 replaces every token that is not the best"
    assert params(editing_threshold=0.5).editing_limit == 16
    assert params(editing_threshold=0.5, editing_limit=0).editing_limit == 0
    assert not params(editing_threshold=1.0).edits, "1 turns a default off"
    published = {"strategy": "threshold", "alignment": "absolute", "reference": True}
    assert params(**published, editing_threshold=1.0).edits
    assert params(**published, editing_threshold=0.5, max_new_tokens=4096).step_limit > 4096
    # An edit may replace an end of text; with a grammar it may not.
    assert params().drop_after_eos
    assert not params(editing_threshold=0.5).drop_after_eos
    assert params(editing_threshold=0.5, regex="a*").drop_after_eos
    # A server's default gives way to what a request says.
    found = resolve(GenerationConfig(strategy="wino"), defaults={"editing_threshold": 0.9, "editing_limit": 2})
    assert (found.edits, found.remasks) == (False, True)


def test_remasking_options() -> None:
    assert params().remask_threshold == 0.0
    assert params(strategy="wino").remask_threshold == 0.9
    assert params(strategy="wino", remask_threshold=0.5).remask_threshold == 0.5
    assert not params(remask_threshold=0.0).remasks
    assert params(strategy="wino", max_new_tokens=40).remask_limit == 40
    assert params(strategy="wino", remask_limit=np.int64(7)).remask_limit == 7
    # More positions are remasked than were certain, and decoding still ends.
    assert params(strategy="wino", skip_threshold=0.1, remask_threshold=1.0).remask_threshold == 1.0


# Requested options and resolved ones


def test_a_config_contains_the_requested_options() -> None:
    options: dict[str, Any] = {"strategy": "dream", "max_new_tokens": 64, "stop": ("x",), "strategy_options": {"a": 1}}
    config = GenerationConfig(**options)
    unasked = {"logprobs": False, "special_tokens": False, "reference": False}
    assert config.requested() == {**options, **unasked}
    assert GenerationConfig.from_mapping(config.requested()) == config
    assert GenerationConfig().requested() == unasked


@pytest.mark.parametrize("options", [{}, {"strategy_options": {"votes": 3, "how": "all"}}, {"stop": ["a"], "top_k": 3}])
def test_configs_and_plans_are_hashable(options: dict[str, Any]) -> None:
    configs = [GenerationConfig(**options) for _ in range(2)]
    assert len({*configs, pickle.loads(pickle.dumps(configs[0]))}) == 1
    given = options.pop("strategy_options", None)
    found = [params(strategy="eb", gamma=gamma, **options) for gamma in (0.1, 0.1, 0.2)]
    assert len({*found, pickle.loads(pickle.dumps(found[0]))}) == 2
    if given is not None:
        with pytest.raises(TypeError):
            configs[0].strategy_options["votes"] = 4  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "devices", "found"),
    [
        ({"branches": 4}, ["cpu"], "auto"),
        ({"branches": 4}, ["cuda:0"], "never"),
        ({"branches": 4}, ["cpu:0", "cpu:1"], "never"),
        ({"branches": 4}, ["cpu:0+cpu:1"], "never"),
        ({"branches": 1}, ["cpu"], "never"),
        ({"branches": "auto"}, ["numpy"], "auto"),
        ({"branches": 1, "deduplicate_rows": True}, ["cpu"], "always"),
        ({"branches": 4, "deduplicate_rows": False}, ["cpu"], "never"),
    ],
)
def test_default_of_shared_rows(options: dict[str, Any], devices: list[str], found: str) -> None:
    assert params(devices=devices, **options).deduplicate_rows == found


@pytest.mark.parametrize(
    ("options", "filters", "top_k", "top_p", "of_kept"),
    [
        ({}, False, TOP_K, 1.0, False),
        ({"top_k": 3}, False, 3, 1.0, False),
        ({"temperature": 1.0}, False, TOP_K, 1.0, False),
        ({"temperature": 1.0, "top_k": 3}, True, 3, 1.0, False),
        ({"temperature": 1.0, "top_p": 0.5}, True, TOP_K, 0.5, False),
        ({"strategy": "dream", "top_k": 3}, True, 3, 1.0, False),
        ({"temperature": 1.0, "top_k": 3, "reference": True, "alignment": "absolute"}, True, 3, 1.0, True),
        ({"temperature": 1.0, "top_k": 0, "reference": True, "alignment": "absolute"}, True, 0, 1.0, False),
        ({"temperature": 1.0, "top_p": 0.5, "reference": True, "alignment": "absolute"}, True, TOP_K, 0.5, False),
    ],
)
def test_filters_of_draws(options: dict[str, Any], filters: bool, top_k: int, top_p: float, of_kept: bool) -> None:
    found = params(**options)
    assert (found.filters, found.top_k, found.top_p, found.top_p_of_kept) == (filters, top_k, top_p, of_kept)


def test_reference_mode() -> None:
    usual, found = params(max_new_tokens=70), params(max_new_tokens=70, reference=True, block_size=32)
    assert (usual.positions, usual.drop_after_eos, usual.overwrites_unmasked) == (70, True, False)
    assert (found.positions, found.drop_after_eos, found.overwrites_unmasked) == (64, False, False)
    assert params(strategy="threshold", reference=True, block_steps=4).overwrites_unmasked
    assert not params(strategy="threshold", block_steps=4).overwrites_unmasked
    assert not params(stop_at_eos=False).drop_after_eos
    assert params(regex="[0-9]+").unmask_first_masked
    assert params(time_limit=3).time_limit == 3.0
    assert params().time_limit == math.inf


# Third-party strategies

OTHER = Strategy(
    name="other_for_config",
    summary="a strategy for tests",
    options=(
        Option(name="votes", help="Branches that have to agree.", default=2, min=1, max=9),
        Option(name="how", help="How.", default="most", kind=Literal["most", "all"]),
        Option(name="gamma", help="Another one.", default=1.5),
    ),
)


def test_options_of_an_installed_strategy() -> None:
    register_strategy(OTHER)
    assert params(strategy=OTHER.name).own == {"votes": 2, "how": "most", "gamma": 1.5}
    found = params(strategy=OTHER.name, gamma=0.5, strategy_options={"votes": 3, "how": "all"})
    assert found.own == {"votes": 3, "how": "all", "gamma": 0.5}
    assert params(strategy="eb", strategy_options={"gamma": 0.7}).own == {"gamma": 0.7}


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({"strategy_options": {"votes": 10}}, "votes 10"),
        ({"strategy_options": {"how": 3}}, "how 3"),
        ({"strategy_options": {"vote": 3}}, "'vote', unknown to strategy 'other_for_config'"),
        ({"strategy_options": {"gamma": 1.0}, "gamma": 0.5}, "'gamma', which is also given as an option"),
        ({"strategy_options": [("votes", 3)]}, "strategy_options "),
        ({"strategy_options": {"votes": None}}, "strategy_options "),
        ({"strategy_options": {3: 4}}, "strategy_options "),
        ({"strategy_options": {f"v{number}": number for number in range(65)}}, "strategy_options "),
        ({"strategy": "lopa", "strategy_options": {"votes": 3}}, "'votes', unknown to strategy 'lopa'"),
        ({"tokens_per_step": 3}, "tokens_per_step 3 with strategy 'other_for_config'"),
    ],
)
def test_unknown_options_of_an_installed_strategy_are_rejected(options: dict[str, Any], received: str) -> None:
    register_strategy(OTHER)
    with pytest.raises(BadInputError) as caught:
        params(**{"strategy": OTHER.name, **options})
    assert received in caught.value.received


# Documentation


def params(*, devices: Any = ("cpu",), **options: Any) -> DecodingParams:
    return resolve(GenerationConfig(**options), devices=devices)


def test_the_documentation_has_every_option_with_its_default() -> None:
    text = inspect.getdoc(GenerationConfig) or ""
    assert re.findall(r"^    (\w+): [A-Z0-9K]", text, re.MULTILINE) == list(OPTIONS)
    assert all(f"Default: {value}." in text for value in PACKAGE_DEFAULTS.values() if value != ())
    assert "gamma: Maximum total entropy" in text
    assert str(inspect.signature(GenerationConfig).parameters["top_p"]).endswith("float] = None")
