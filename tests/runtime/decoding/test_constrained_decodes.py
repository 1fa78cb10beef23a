"""Whole decodes with grammars on the tiny model, checked independently of llguidance."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from lopa.runtime import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import GrammarRefusedError
from lopa.runtime.requests.result import DoneEvent, GenerationResult
from lopa.runtime.strategy import STRATEGIES

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "integer", "minimum": 0, "maximum": 999},
        "unit": {"enum": ["candies", "shells"]},
    },
    "required": ["answer", "unit"],
    "additionalProperties": False,
}


def generate_with_schema(decoder: Decoder, prompt: tuple[int, ...], **options: Any) -> GenerationResult:
    return decoder.generate(prompt, decoder.config(**{"max_new_tokens": 48, **options}))


def valid(result: GenerationResult, schema: dict[str, Any]) -> bool:
    jsonschema.Draft202012Validator(schema).validate(json.loads(result.text))
    return result.stop_reason == "eos"


@pytest.mark.parametrize(
    "strategy", [name for name, strategy in STRATEGIES.items() if not (strategy.remask_threshold or strategy.canvas)]
)
def test_every_strategy_satisfies_the_schema(decoder: Decoder, prompt: tuple[int, ...], strategy: str) -> None:
    branches = 3 if STRATEGIES[strategy].looks_ahead else None
    for more in ({}, {"skip_threshold": 0.3, "temperature": 1.0, "block_size": 8}):
        result = generate_with_schema(decoder, prompt, strategy=strategy, branches=branches, json_schema=SCHEMA, **more)
        assert valid(result, SCHEMA)
        assert len(result.token_ids) <= 48


def test_forbidden_tokens_behind_a_gap_are_remasked(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    remasked: list[int] = []
    config = decoder.config(regex=" (zq|qz){8} candies", strategy="d2f", skip_threshold=0.05, max_new_tokens=48)

    def note(step: Step) -> None:
        remasked.append(max(each.grammar.remasked for each in step.branches if each.grammar))

    *_, last = decoder.stream(prompt, config, on_step=note)
    assert isinstance(last, DoneEvent)
    assert re.fullmatch(" (zq|qz){8} candies", last.result.text)
    assert max(remasked) > 0


def test_a_completely_forced_answer_needs_no_forward(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    result = generate_with_schema(decoder, prompt, regex="So the answer is 7 candies\\.", logprobs=True)
    assert result.text == "So the answer is 7 candies."
    assert result.stop_reason == "eos"
    assert result.logprobs is not None
    assert np.isnan(result.logprobs).sum() >= result.tokens - 2
    free = generate_with_schema(decoder, prompt, json_schema=SCHEMA)
    assert result.steps < free.steps


def test_a_tight_length_limit_is_enough(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    with pytest.raises(GrammarRefusedError) as error:
        generate_with_schema(decoder, prompt, json_schema=SCHEMA, max_new_tokens=3)
    min = int(re.search(r"raise max_new_tokens to (\d+)", str(error.value))[1])  # type: ignore[index]
    for strategy in ("lopa", "vanilla"):
        result = generate_with_schema(decoder, prompt, json_schema=SCHEMA, max_new_tokens=min, strategy=strategy)
        assert valid(result, SCHEMA)
