"""Options that a strategy does not read: no value changes the answer, and the command line refuses them."""

import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import lopa_export

from lopa.cli.options.decoding_options import checked_overrides
from lopa.runtime import BadInputError, Decoder, GenerationConfig
from lopa.runtime.generation_config.config import OPTIONS, OWN_OPTIONS
from lopa.runtime.strategy import STRATEGIES

PROMPTS = ("Question: Ida has 4 pens and buys 3 more. How many pens does Ida have?\nAnswer:", "zebra 12 + 7 =")
OTHER_VALUES: Mapping[str, tuple[Any, ...]] = {
    "skip_threshold": (0.02, 0.5),
    "confidence": ("margin", "probability"),
    "block_size": (3,),
    "sub_block": (2,),
    "block_steps": (2,),
    "block_add_threshold": (0.9, 0.0),
    "decoded_token_threshold": (0.02, 1.0),
}
BESIDE: tuple[dict[str, Any], ...] = ({"block_size": 4}, {"block_size": 8, "block_steps": 3}, {"block_size": 8})
SAME_FOR_ALL = """
max_new_tokens temperature top_p seed stop top_k min_p presence_penalty frequency_penalty repetition_penalty stop_at_eos
drop_after_eos time_limit anytime logprobs top_logprobs special_tokens stop_token_ids logit_bias max_forwards preset
strategy strategy_options branches speculative reference eos_early_stop deduplicate_rows json_schema regex grammar
choices reasoning_budget attention alignment cache unmask_first_masked remask_threshold remask_limit editing_threshold
editing_limit
"""
"""Options that no stage of a strategy reads, or that are refused for strategies without their stage."""
SLIDING = {"entropy_threshold", "distance_penalty"}
"""Options of sliding blocks, which tests/export/families/test_sliding_bundles.py walks."""


@pytest.mark.parametrize("strategy", [name for name, each in STRATEGIES.items() if not each.canvas])
def test_options_without_effect_are_exactly_those_listed_as_unread(strategy: str, decoder: Decoder) -> None:
    @cache
    def answer(prompt: str, **options: Any) -> Any:
        with suppress(BadInputError):
            found = decoder.generate(prompt, strategy=strategy, max_new_tokens=24, **options)
            return found.token_ids, found.steps

    unread = set()
    for name, values in OTHER_VALUES.items():
        cases = [(prompt, beside) for beside in BESIDE for prompt in PROMPTS if answer(prompt, **beside)]
        pairs = ((answer(p, **{**beside, name: value}), answer(p, **beside)) for p, beside in cases for value in values)
        effects = (found != usual for found, usual in pairs if found)
        if next(effects, None) is False and not any(effects):
            unread.add(name)
    assert unread == {*STRATEGIES[strategy].unread}


def test_every_common_option_is_walked_or_the_same_for_all_strategies() -> None:
    assert sorted({*OTHER_VALUES, *SLIDING, *OWN_OPTIONS, *SAME_FOR_ALL.split()}) == sorted(OPTIONS)


@pytest.mark.parametrize(
    ("options", "name", "values"),
    [
        ({"strategy": "dream", "alg": "origin", "temperature": 1.0, "seed": 1}, "alg_temp", (0.5, 5.0)),
        ({"strategy": "sequential", "block_size": 8}, "sub_block", (2, 3)),
    ],
)
def test_options_without_effect_beside_others(
    options: dict[str, Any], name: str, values: tuple[Any, ...], decoder: Decoder
) -> None:
    for prompt in PROMPTS:
        expected = decoder.generate(prompt, max_new_tokens=16, **options)
        for value in values:
            found = decoder.generate(prompt, max_new_tokens=16, **options, **{name: value})
            assert (found.token_ids, found.steps) == (expected.token_ids, expected.steps)


REFUSED: list[tuple[dict[str, Any], str, Any]] = [
    ({"strategy": "vanilla"}, "skip_threshold", 0.3),
    ({"strategy": "threshold"}, "block_add_threshold", 0.9),
    ({"strategy": "dream"}, "block_size", 4),
    ({"strategy": "dream", "alg": "origin"}, "alg_temp", 0.5),
    ({"strategy": "sequential"}, "sub_block", 2),
]


@pytest.mark.parametrize(("others", "option", "value"), REFUSED)
def test_an_unread_option_is_refused_beside_its_strategy_and_its_default(
    others: dict[str, Any], option: str, value: Any, tiny_bundle: Path
) -> None:
    own: dict[str, Any] = {option: value}
    other = f"alg {others['alg']!r}" if "alg" in others else f"strategy {others['strategy']!r}"
    expected = re.escape(f"cannot combine {option} {value} with {other}")
    for defaults, given in (({}, {**others, **own}), (others, own)):
        with Decoder.open(tiny_bundle, "numpy", defaults=defaults) as decoder:
            resolve = decoder.resolve
            resolve(GenerationConfig(**given))  # programs and clients may give it
            with pytest.raises(BadInputError, match=expected):
                checked_overrides(given, resolve)


def test_commands_check_the_default_strategy(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    assert lopa_export("edit", bundle, "--default", "strategy=vanilla").returncode == 0
    for command, text in (("generate", "x"), ("fill", "x <hole:4>"), ("chat", None)):
        done = lopa_export(command, bundle, *([] if text is None else [text]), "--skip-threshold", "0.3")
        assert done.returncode == 2, command
        assert "cannot combine skip_threshold 0.3 with strategy 'vanilla'" in done.stderr
