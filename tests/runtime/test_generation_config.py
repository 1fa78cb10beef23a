import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import TRAITS, GenerationConfig, Strategy, left_out_for


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"strategy": "beam"}, "strategy 'beam'"),
        ({"branches": 0}, "branches 0"),
        ({"branches": 2.0}, "branches 2.0"),
        ({"strategy": "d2f", "branches": 3}, "branches 3 with strategy 'd2f'"),
        ({"lossless": 1}, "lossless 1"),
        ({"lossless": True}, "lossless with strategy 'lopa'"),
        ({"lossless": True, "strategy": "vanilla", "published": True}, "lossless with published mode"),
        ({"lossless": True, "strategy": "d2f", "branches": "auto"}, "lossless with branches 'auto'"),
        (
            {"lossless": True, "strategy": "threshold", "alignment": "sliding", "window": "causal"},
            "lossless with alignment 'sliding'",
        ),
        ({"block_size": 0}, "block_size 0"),
        ({"block_add_threshold": 1.5}, "block_add_threshold 1.5"),
        ({"decoded_token_threshold": -0.1}, "decoded_token_threshold -0.1"),
        ({"skip_threshold": float("nan")}, "skip_threshold nan"),
        ({"skip_threshold": "0.9"}, "skip_threshold '0.9'"),
        ({"confidence": "entropy"}, "confidence 'entropy'"),
        ({"window": "diagonal"}, "window 'diagonal'"),
        ({"max_new_tokens": 0}, "max_new_tokens 0"),
        ({"max_new_tokens": True}, "max_new_tokens True"),
        ({"temperature": -1.0}, "temperature -1.0"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"seed": -1}, "seed -1"),
        ({"stop": "end"}, "stop 'end'"),
        ({"stop": ("",)}, "stop ('',)"),
        ({"time_limit": 0}, "time_limit 0"),
        ({"branche": 4}, "unknown option 'branche'"),
        ({3: 4, None: 5}, "unknown option 3, None"),
        ({"max_new_tokens": 10**30}, f"max_new_tokens {10**30}"),
        ({"max_new_tokens": 10**9000}, "max_new_tokens a value of type int"),
        ({"block_size": 2**31}, f"block_size {2**31}"),
        ({"branches": 65}, "branches 65"),
        ({"branches": np.array([1, 2])}, "branches array([1, 2])"),
        ({"branches": "many"}, "branches 'many'"),
        ({"branches": True}, "branches True"),
        ({"seed": 2**63}, f"seed {2**63}"),
        ({"seed": 1.0}, "seed 1.0"),
        ({"seed": np.float64(1)}, "seed np.float64(1.0)"),
        ({"top_k": 10**30}, f"top_k {10**30}"),
        ({"top_p": math.inf}, "top_p inf"),
        ({"top_p": np.float32("nan")}, "top_p np.float32(nan)"),
        ({"time_limit": 10**400}, f"time_limit {str(10**400)[:80]}..."),
        ({"time_limit": 1e300}, "time_limit 1e+300"),
        ({"temperature": 1e-300}, "temperature 1e-300"),
        ({"temperature": 1e300}, "temperature 1e+300"),
        ({"temperature": True}, "temperature True"),
        ({"temperature": np.bool_(True)}, "temperature np.True_"),
        ({"temperature": "1"}, "temperature '1'"),
        ({"temperature": None}, "temperature None"),
        ({"strategy": ["lopa"]}, "strategy ['lopa']"),
        ({"strategy": np.array(["lopa", "d2f"])}, "strategy array(['lopa', 'd2f'], dtype='<U4')"),
        ({"stop_at_eos": 1}, "stop_at_eos 1"),
        ({"take_back_threshold": 1.5}, "take_back_threshold 1.5"),
        ({"take_back_threshold": -0.1}, "take_back_threshold -0.1"),
        ({"take_back_threshold": math.nan}, "take_back_threshold nan"),
        ({"take_back_threshold": "0.5"}, "take_back_threshold '0.5'"),
        ({"take_back_threshold": 0.5, "take_back_limit": -1}, "take_back_limit -1"),
        ({"take_back_threshold": 0.5, "take_back_limit": 2.0}, "take_back_limit 2.0"),
        ({"take_back_limit": 3}, "take_back_limit 3 without take_back_threshold"),
        ({"strategy": "vanilla", "take_back_threshold": 0.5}, "take_back_threshold 0.5 with strategy 'vanilla'"),
        ({"strategy": "sequential", "take_back_limit": 5}, "take_back_limit 5 with strategy 'sequential'"),
        ({"take_back_threshold": 0.5, "published": True}, "take_back_threshold with published True"),
        ({"strategy": "wino", "published": True}, "strategy 'wino' with published True"),
        (
            {"strategy": "threshold", "take_back_threshold": 0.5, "alignment": "sliding", "window": "causal"},
            "take_back_threshold with alignment 'sliding'",
        ),
        ({"strategy": "wino", "alignment": "sliding", "window": "causal"}, "strategy 'wino' with alignment 'sliding'"),
        ({"strategy": "wino", "cache": "sub_block", "sub_block": 8}, "strategy 'wino' with cache 'sub_block'"),
        ({"strategy": "wino", "branches": 4}, "branches 4 with strategy 'wino'"),
        ({"published": "yes"}, "published 'yes'"),
        ({"logprobs": None}, "logprobs None"),
        ({"stop": None}, "stop None"),
        ({"stop": 5}, "stop 5"),
        ({"stop": ["a", 5]}, "stop ['a', 5]"),
        ({"stop": {"a": 1}}, "stop {'a': 1}"),
        ({"stop": ["caf\udce9"]}, "stop ['caf\\udce9']"),
        ({"stop": ["a"] * 65}, "stop " + str(["a"] * 65)[:80] + "..."),
        ({"stop": ["a" * 1025]}, "stop " + str(["a" * 1025])[:80] + "..."),
        ({"alignment": "left"}, "alignment 'left'"),
        ({"cache": "all"}, "cache 'all'"),
        ({"cache": "dual"}, "cache 'dual' with strategy 'lopa'"),
        ({"cache": "sub_block", "strategy": "d2f", "sub_block": 8}, "cache 'sub_block' with strategy 'd2f'"),
        ({"block_steps": 4}, "block_steps with strategy 'lopa'"),
        ({"sub_block": 33}, "sub_block 33"),
        ({"sub_block": 0}, "sub_block 0"),
        ({"block_steps": 9, "block_size": 8, "strategy": "vanilla"}, "block_steps 9"),
        (
            {"cache": "none", "strategy": "threshold", "alignment": "absolute"},
            "cache 'none' with alignment 'absolute' and window 'full'",
        ),
        (
            {"cache": "prefix", "strategy": "threshold", "window": "block_causal"},
            "cache 'prefix' with alignment 'prompt' and window 'block_causal'",
        ),
        ({"cache": "sub_block", "strategy": "threshold"}, "cache 'sub_block' without sub-blocks"),
        ({"strategy": "eb", "gamma": -0.1}, "gamma -0.1"),
        ({"strategy": "eb", "gamma": math.nan}, "gamma nan"),
        ({"strategy": "eb", "gamma": -math.inf}, "gamma -inf"),
        ({"strategy": "eb", "gamma": "inf"}, "gamma 'inf'"),
        ({"strategy": "eb", "gamma": 10**400}, f"gamma {str(10**400)[:80]}..."),
        ({"gamma": 0.2}, "gamma 0.2 with strategy 'lopa'"),
        ({"strategy": "d2f", "gamma": 0.0}, "gamma 0.0 with strategy 'd2f'"),
        ({"strategy": "eb", "cache": "none"}, "cache 'none' with strategy 'eb'"),
        ({"strategy": "factor", "branches": 2}, "branches 2 with strategy 'factor'"),
        ({"strategy": "factor", "factor": -1}, "factor -1"),
        ({"strategy": "klass", "kl_threshold": math.inf}, "kl_threshold inf"),
        ({"strategy": "vanilla", "per_step": 2}, "per_step 2 with strategy 'vanilla'"),
        ({"strategy": "top_n", "per_step": 0}, "per_step 0"),
        ({"strategy": "top_n", "block_steps": 4}, "block_steps with strategy 'top_n'"),
        ({"strategy": "threshold", "steps": 8}, "steps 8 with strategy 'threshold'"),
        ({"strategy": "dream", "steps": 0}, "steps 0"),
        ({"strategy": "dream", "steps": 2**16 + 1}, f"steps {2**16 + 1}"),
        ({"strategy": "dream", "alg": "random"}, "alg 'random'"),
        ({"strategy": "dream", "alg_temp": -1.0}, "alg_temp -1.0"),
        ({"strategy": "dream", "cache": "dual"}, "cache 'dual' with strategy 'dream'"),
        ({"strategy": "dream", "sub_block": 4}, "sub_block 4 with strategy 'dream'"),
        (
            {"strategy": "dream", "window": "block_causal"},
            "strategy 'dream' with alignment 'prompt' and window 'block_causal'",
        ),
    ],
)
def test_bad_values_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInputError) as caught:
        GenerationConfig.from_mapping(options)
    assert caught.value.received == named
    assert caught.value.exit_code == 2
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize("values", [None, 5, "seed", ["seed"], [("seed", 1)]])
def test_options_that_are_no_mapping(values: Any) -> None:
    with pytest.raises(BadInputError, match="options "):
        GenerationConfig.from_mapping(values)


def test_a_value_whose_repr_fails_is_refused_all_the_same() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise ZeroDivisionError

    rude: Any = Rude()
    for field in dataclasses.fields(GenerationConfig):
        with pytest.raises(BadInputError, match=f"{field.name} a value of type Rude"):
            GenerationConfig(**{field.name: rude})


def test_numbers_of_numpy_become_plain_ones() -> None:
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
    assert type(config.stop[0]) is str


def test_no_seed_draws_one() -> None:
    drawn = [GenerationConfig(seed=None).seed for _ in range(4)]
    assert all(isinstance(seed, int) for seed in drawn)
    assert len(set(drawn)) > 1
    config = GenerationConfig(seed=None)
    assert dataclasses.replace(config, max_new_tokens=8).seed == config.seed == config.draw_seed


def test_lookaheads_are_the_branches_beside_the_anchor() -> None:
    assert GenerationConfig().lookaheads == 3
    assert GenerationConfig(branches=1).lookaheads == 0
    assert GenerationConfig(branches=8).lookaheads == 7
    assert GenerationConfig(strategy="vanilla", lossless=True).lookaheads == 3
    assert GenerationConfig(strategy="d2f", lossless=True, branches=1).lookaheads == 0
    for strategy in ("d2f", "threshold", "vanilla"):
        assert GenerationConfig(strategy=strategy).lookaheads == 0


def test_block_by_block_strategies_open_a_block_when_the_last_is_done() -> None:
    assert GenerationConfig(strategy="threshold").add_threshold == 1.0
    assert GenerationConfig(strategy="vanilla").add_threshold == 1.0
    assert GenerationConfig(strategy="d2f", block_add_threshold=0.3).add_threshold == 0.3


SLIDING: dict[str, Any] = {"alignment": "sliding", "window": "causal"}


def test_a_sliding_block_is_filled_by_its_score() -> None:
    config = GenerationConfig(**SLIDING)
    assert (config.score_limit, config.score_per_position) == (0.4, 0.02)
    config = GenerationConfig(**SLIDING, entropy_threshold=1, distance_penalty=0)
    assert (config.score_limit, config.score_per_position) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("options", "received"),
    [
        ({**SLIDING, "window": "full"}, "window 'full' with alignment 'sliding'"),
        ({"window": "causal"}, "window 'causal' with alignment 'prompt'"),
        ({"entropy_threshold": 0.4}, "entropy_threshold 0.4 with alignment 'prompt'"),
        ({"alignment": "absolute", "distance_penalty": 0.0}, "distance_penalty 0.0 with alignment 'absolute'"),
        ({**SLIDING, "confidence": "margin"}, "confidence 'margin' with alignment 'sliding'"),
        ({**SLIDING, "sub_block": 4}, "sub_block 4 with alignment 'sliding'"),
        ({**SLIDING, "strategy": "threshold", "block_steps": 4}, "block_steps 4 with alignment 'sliding'"),
        (
            {**SLIDING, "strategy": "threshold", "cache": "sub_block", "sub_block": 4},
            "cache 'sub_block' with alignment 'sliding'",
        ),
        ({**SLIDING, "published": True}, "published True with alignment 'sliding'"),
        ({**SLIDING, "entropy_threshold": -1}, "entropy_threshold -1"),
        ({**SLIDING, "distance_penalty": math.nan}, "distance_penalty"),
    ],
)
def test_what_a_sliding_block_does_not_have_is_refused(options: dict[str, Any], received: str) -> None:
    with pytest.raises(BadInputError, match=received):
        GenerationConfig(**options)


def test_every_option_of_a_strategy_is_refused_by_all_others() -> None:
    values: dict[str, Any] = {
        "gamma": 0.3, "per_step": 2, "factor": 0.5, "kl_threshold": 0.1, "alg": "origin", "steps": 3, "alg_temp": 0.2,
        "take_back_threshold": 0.5, "take_back_limit": 3, "decide_frontier": True,
    }  # fmt: skip
    own = {name for traits in TRAITS.values() for name in traits.own}
    assert own <= values.keys()
    for strategy, traits in TRAITS.items():
        for name in sorted(own):
            if name in traits.own:
                needed = {"take_back_threshold": 0.5} if name == "take_back_limit" else {}
                config = GenerationConfig(strategy=strategy, **{**needed, name: values[name]})
                assert getattr(config, name) == values[name]
                continue
            with pytest.raises(BadInputError, match=f"{name} .* with strategy '{strategy}'") as caught:
                GenerationConfig(strategy=strategy, **{name: values[name]})
            assert name in caught.value.remedy


def test_a_bound_of_entropy_may_be_infinite() -> None:
    assert GenerationConfig(strategy="eb").entropy_bound == 0.2
    assert GenerationConfig(strategy="eb", gamma=math.inf).entropy_bound == math.inf
    assert GenerationConfig(strategy="eb", gamma=np.float32(math.inf)).gamma == math.inf  # type: ignore[arg-type]
    assert GenerationConfig(strategy="eb").lookaheads == 0
    assert GenerationConfig(strategy="eb", branches=3).lookaheads == 2


def test_dream_decodes_the_whole_answer_as_one_block() -> None:
    config = GenerationConfig(strategy="dream", max_new_tokens=100, alg="topk_margin")
    assert (config.block_size, config.cache, config.confidence) == (100, "none", "margin")
    assert config.schedule_steps == 100
    longer = dataclasses.replace(config, max_new_tokens=120, alg="maskgit_plus", steps=7)
    assert (longer.step_limit, GenerationConfig(strategy="d2f", max_new_tokens=7).step_limit) == (7, 1001)
    assert (longer.block_size, longer.confidence, longer.schedule_steps) == (120, "probability", 7)
    assert GenerationConfig(strategy="dream", top_k=0).draws_from_logits
    assert not GenerationConfig(strategy="threshold", top_k=0).draws_from_logits


@pytest.mark.parametrize("strategy", TRAITS)
def test_what_a_model_is_decoded_by_leaves_out_what_another_strategy_lacks(strategy: Strategy) -> None:
    """A model's own loop has sub-blocks, steps and a cache of them; every strategy can be asked for all the same."""
    own = {"cache": "sub_block", "sub_block": 8, "block_steps": 4}
    config = GenerationConfig(**{**own, **left_out_for(strategy), "strategy": strategy})
    kept = strategy in ("threshold", "vanilla", "sequential", "top_n")
    assert config.cache == ("sub_block" if kept else "none" if strategy == "dream" else "blocks")
    assert config.block_steps == (4 if TRAITS[strategy].block_steps else None)


def test_what_takes_back_and_how_much() -> None:
    assert GenerationConfig().doubt_threshold is None
    assert GenerationConfig(strategy="wino").doubt_threshold == 0.9
    assert GenerationConfig(strategy="wino", take_back_threshold=0.5).doubt_threshold == 0.5
    assert GenerationConfig(take_back_threshold=0.0).doubt_threshold == 0.0
    assert GenerationConfig(strategy="wino", max_new_tokens=40).most_taken_back == 40
    assert GenerationConfig(strategy="wino", take_back_limit=np.int64(7)).most_taken_back == 7
    # More is doubted than was sure: the rule ends by itself.
    assert GenerationConfig(strategy="wino", skip_threshold=0.1, take_back_threshold=1.0).doubt_threshold == 1.0
