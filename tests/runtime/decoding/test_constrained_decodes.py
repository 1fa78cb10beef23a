"""Whole decodes with grammars on the tiny model, checked independently of llguidance."""

import json
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tools.random_schemas import random_schema

from lopa.runtime import Decoder, Engine
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError, GrammarRefusedError
from lopa.runtime.requests.request import Request
from lopa.runtime.requests.result import DoneEvent, GenerationResult, TextEvent
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


@pytest.mark.parametrize("strategy", [name for name, strategy in STRATEGIES.items() if not strategy.remask_threshold])
def test_every_strategy_satisfies_the_schema(decoder: Decoder, prompt: tuple[int, ...], strategy: str) -> None:
    branches = 3 if STRATEGIES[strategy].looks_ahead else None
    for more in ({}, {"skip_threshold": 0.3, "temperature": 1.0, "block_size": 8}):
        result = generate_with_schema(decoder, prompt, strategy=strategy, branches=branches, json_schema=SCHEMA, **more)
        assert valid(result, SCHEMA)
        assert len(result.token_ids) <= 48


def test_random_schemas(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    rng, ended = random.Random(4), 0
    while ended < 8:
        schema = random_schema(rng, depth=2)
        options = {"branches": rng.choice([1, 4]), "skip_threshold": rng.choice([0.3, 0.9]), "block_size": 16}
        try:
            result = generate_with_schema(decoder, prompt, json_schema=schema, max_new_tokens=64, **options)
        except GrammarRefusedError:
            continue
        assert valid(result, schema)
        ended += 1


def test_a_bundle_with_logits_draws_among_all_allowed_tokens(tiny_bundle_logits: Path, prompt: tuple[int, ...]) -> None:
    with Decoder.open(tiny_bundle_logits, threads=1) as decoder:
        for options in ({}, {"temperature": 1.0, "top_k": 0}):
            assert valid(generate_with_schema(decoder, prompt, json_schema=SCHEMA, **options), SCHEMA)


@pytest.mark.parametrize("family", ["fast_dllm_v2", "sdar"])
def test_other_layouts(family_bundle: Callable[..., Path], family: str) -> None:
    with Decoder.open(family_bundle(family), threads=1) as decoder:
        prompt = tuple(decoder.tokenizer.encode("A question", add_bos=True))
        result = generate_with_schema(decoder, prompt, regex="(yes|no), [a-c]{9}")
        assert re.fullmatch("(yes|no), [a-c]{9}", result.text)
        assert result.stop_reason == "eos"


def test_streamed_text_is_final_and_drafts_are_shown(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    config = decoder.config(json_schema=SCHEMA, max_new_tokens=40, skip_threshold=0.2, branches=3)
    texts, steps = [], []
    for event in decoder.stream(prompt, config, drafts=True, on_step=steps.append):
        if isinstance(event, TextEvent):
            texts.append(event.text)
        elif isinstance(event, DoneEvent):
            result = event.result
    assert "".join(texts) == result.text
    for before, after in pairwise(steps):
        front = before.branches[-1].layout.prompt + int(
            np.argmin(np.append(before.branches[-1].unmasked[before.branches[-1].layout.prompt :], False))
        )
        assert np.array_equal(before.branches[-1].tokens[:front], after.branches[-1].tokens[:front])


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


def test_requests_with_different_grammars_share_forwards(tiny_bundle: Path, prompt: tuple[int, ...]) -> None:
    lark = 'start: "a" "b"+ "!"'
    grammars: list[dict[str, Any]] = [{"json_schema": SCHEMA}, {"regex": "[0-9]{2} candies"}, {}, {"grammar": lark}]
    with Engine.open(tiny_bundle, threads=1, max_num_seqs=4) as engine:
        configs = [engine.decoder.config(max_new_tokens=32, branches=2, **grammar) for grammar in grammars]
        handles = engine.submit_many([Request(prompt, config) for config in configs])
        together = [handle.result(60).text for handle in handles]
        alone = [engine.submit(prompt, config).result(60).text for config in configs]
    assert together == alone
    assert re.fullmatch("[0-9]{2} candies", together[1])
    assert re.fullmatch("ab+!", together[3])


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "a", "json_schema": {}},
        {"regex": "a", "reference": True},
        {"regex": "a", "stop_at_eos": False},
        {"regex": "a", "strategy": "wino"},
        {"regex": "a", "strategy": "vanilla", "speculative": True},
    ],
)
def test_incompatible_options_are_rejected(decoder: Decoder, options: dict[str, Any]) -> None:
    with pytest.raises(BadInputError):
        decoder.config(**options)
