"""The decoder on a bundle and an engine."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lopa import tiny
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.output_processor import MASKED
from lopa.runtime.requests.result import DoneEvent, DraftEvent, GenerationResult, TextEvent
from lopa.runtime.sessions.session import next_request_number


@pytest.fixture(scope="module")
def decoder(tiny_bundle: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        yield decoder


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


def test_the_numpy_engine_decodes_the_same(decoder: Decoder, tiny_bundle: Path, prompts: list[str]) -> None:
    with Decoder.open(tiny_bundle, ["numpy"]) as reference:
        for prompt in prompts[:2]:
            ours, theirs = decode(decoder, prompt), decode(reference, prompt)
            assert dataclasses.replace(ours, seconds=0) == dataclasses.replace(theirs, seconds=0)


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


def test_a_prompt_may_contain_the_text_of_the_mask_token(decoder: Decoder, prompts: list[str]) -> None:
    mask = decoder.bundle.manifest.special_tokens.mask
    assert mask not in decode(decoder, "Say <|mask|> twice. " + prompts[0]).prompt_ids
    requested = {"special_tokens": True}
    result = decode(decoder, "Say <|mask|> twice. " + prompts[0], **requested)
    assert mask in result.prompt_ids
    assert mask not in result.token_ids
    assert result.stop_reason == "eos"
    published = decode(decoder, "Say <|mask|> twice. " + prompts[0], reference=True, branches=5, **requested)
    plain = decode(decoder, "Say <|mask|> twice. " + prompts[0], branches=5, **requested)
    assert published.token_ids[: plain.tokens] == plain.token_ids


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


def test_ids_are_used_unchanged(decoder: Decoder, prompts: list[str]) -> None:
    text = decode(decoder, prompts[0])
    assert text.prompt_ids[0] == decoder.bundle.manifest.special_tokens.bos
    ids = decode(decoder, text.prompt_ids)
    assert dataclasses.replace(ids, seconds=0) == dataclasses.replace(text, seconds=0)


LONG_PROMPT = (
    "the prompt has 1793 tokens, but this model has 2048 positions for prompt and answer together (max_new_tokens: 256)"
)


@pytest.mark.parametrize(
    ("prompt", "received"),
    [
        ("", "an empty prompt"),
        ([], "an empty prompt"),
        ([5, 1024], "invalid prompt ids [5, 1024]"),
        ([-1], "invalid prompt ids [-1]"),
        ([1.5], "invalid prompt ids [1.5]"),
        (
            [7] * 1793,
            LONG_PROMPT,
        ),
    ],
)
def test_bad_prompts_are_rejected(decoder: Decoder, prompt: Any, received: str) -> None:
    with pytest.raises(BadInputError) as caught:
        decoder.stream(prompt)
    assert caught.value.received == received


def test_closing_the_stream_frees_the_request(decoder: Decoder, prompts: list[str]) -> None:
    steps: list[Step] = []
    stream = decoder.stream(prompts[0], drafts=True, on_step=steps.append)
    while not steps:
        next(stream)
    request = next_request_number() - 1  # the request number used before
    assert decoder.session.prefix_length(request) == steps[0].rows.commit > 0
    stream.close()
    assert decoder.session.prefix_length(request) == 0
    assert decode(decoder, prompts[0]).stop_reason == "eos"


def test_an_unknown_device_is_rejected(tiny_bundle: Path) -> None:
    for devices in ((), ("cpu", "cpu"), "cpu"):
        with pytest.raises(BadInputError):
            Decoder.open(tiny_bundle, devices)
    with pytest.raises(BadInputError, match="device 'tpu'"):
        Decoder.open(tiny_bundle, ["tpu"])
