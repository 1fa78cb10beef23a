"""The decoder on a bundle and an engine."""

import itertools
import json
from typing import Any

import pytest

from lopa import tiny
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.output_processor import MASKED
from lopa.runtime.requests.result import DoneEvent, DraftEvent, GenerationResult, TextEvent


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    with tiny.EVAL.open(encoding="utf-8") as lines:
        return [json.loads(line)["prompt"] for line in itertools.islice(lines, 6)]


def decode(decoder: Decoder, prompt: Any, **options: Any) -> GenerationResult:
    return decoder.generate(prompt, decoder.config(**options))


def test_streamed_text_is_final_and_equals_the_result(decoder: Decoder, prompts: list[str]) -> None:
    for prompt in prompts:
        *events, last = decoder.stream(prompt, drafts=True)
        assert isinstance(last, DoneEvent)
        result = last.result
        shown = ""
        for event in events:
            if isinstance(event, TextEvent):
                assert event.text
                shown += event.text
            elif isinstance(event, DraftEvent):
                assert event.text.startswith(shown)
        assert shown == result.text
        assert result.token_ids[-1] == decoder.bundle.manifest.special_tokens.eos
        assert result.text == decoder.tokenizer.decode(list(result.token_ids))
        drafts = [event for event in events if isinstance(event, DraftEvent)]
        assert [draft.step for draft in drafts] == list(range(1, result.steps + 1))
        assert MASKED in drafts[0].text


def test_counts_match_the_steps(decoder: Decoder, prompts: list[str]) -> None:
    steps: list[Step] = []
    *_, last = decoder.stream(prompts[0], decoder.config(branches=4), on_step=steps.append)
    assert isinstance(last, DoneEvent)
    result = last.result
    assert result.steps == len(steps)
    assert result.tokens == len(result.token_ids)
    assert result.tokens_per_forward == result.tokens / result.steps
    assert result.generated_positions % 32 == 0
    assert result.generated_positions >= result.tokens
    assert result.stop_reason == "eos"
    assert all(step.seconds["forward"] > 0 for step in steps)
    assert max(len(step.branches) for step in steps) == 4


def test_a_stop_string_ends_the_answer_before_it(decoder: Decoder, prompts: list[str]) -> None:
    whole = decode(decoder, prompts[0])
    stop = whole.text[20:24]
    cut = decode(decoder, prompts[0], stop=(stop, "never there"))
    assert cut.stop_reason == "stop_string"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert stop in decoder.tokenizer.decode(list(cut.token_ids))
    assert stop not in decoder.tokenizer.decode(list(cut.token_ids[:-1]))
    assert cut.steps <= whole.steps


def test_max_new_tokens_bounds_the_answer_for_any_block_size(decoder: Decoder, prompts: list[str]) -> None:
    for upper in (1, 7, 33):
        result = decode(decoder, prompts[0], max_new_tokens=upper)
        assert (result.tokens, result.generated_positions, result.stop_reason) == (upper, upper, "length")
    assert decode(decoder, prompts[0], max_new_tokens=31, reference=True).token_ids == ()


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_a_mask_token_in_the_prompt_with_whole_answer_caches(decoder: Decoder, cache: str) -> None:
    """The loop once searched for a next block and failed the request."""
    requested: dict[str, Any] = {
        "strategy": "sequential",
        "reference": True,
        "cache": cache,
        "block_size": 4,
        "stop_at_eos": False,
    }
    mask = decoder.bundle.manifest.special_tokens.mask
    for new, steps in ((2, 0), (8, 8)):  # less than a block generates nothing
        result = decode(decoder, (30, mask, 31), max_new_tokens=new, **requested)
        assert (result.steps, result.generated_positions) == (steps, steps)
