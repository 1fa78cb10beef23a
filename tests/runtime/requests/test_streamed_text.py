"""Streamed text is final with any strategy: random configs in one engine, with drafts."""

from typing import Any

import numpy as np
import pytest
from tools.random_configs import random_config, random_prompt

from lopa.cli.files.step_log import record_from_step
from lopa.runtime import Decoder, DraftEvent, Engine, GenerationConfig, TextEvent
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.output_processor import MASKED
from lopa.runtime.requests.result import DoneEvent, Event

DOUBTFUL: dict[str, Any] = {"skip_threshold": 0.3, "remask_threshold": 0.95, "max_new_tokens": 40}
GRAMMAR = {"regex": "(The|An?) [a-zéü ]{1,24}\\."}


def random_request(decoder: Decoder, rng: np.random.Generator) -> list[tuple[tuple[int, ...], GenerationConfig]]:
    """Return random options: some remask many tokens, some draw from all tokens, which splits characters, some have a
    grammar."""
    configs = [random_config(rng, decoder) for _ in range(18)]
    for strategy in ("d2f", "wino", "threshold", "eb", "lopa"):
        for more in ({}, {"temperature": 1.7, "stop_at_eos": False, "seed": 3}):
            configs.append(decoder.config(strategy=strategy, stop=("e ", "##") if not more else (), **DOUBTFUL, **more))
    configs += [decoder.config(strategy=strategy, max_new_tokens=32, **GRAMMAR) for strategy in ("d2f", "vanilla")]
    return [(random_prompt(rng, decoder), config) for config in configs]


def check(decoder: Decoder, config: GenerationConfig, prompt: int, events: list[Event], steps: list[Step]) -> None:
    """Check every guarantee of a stream."""
    *_, done = events
    assert isinstance(done, DoneEvent)
    text = ""
    for event in events:
        if isinstance(event, TextEvent):
            assert event.text
            text += event.text
        elif isinstance(event, DraftEvent):
            assert event.text.startswith(text), "a draft lacks streamed text"
            if event.step < len(steps):  # the next round verifies this one's tokens
                anchor = steps[event.step].branches[-1]
                masked = int(np.count_nonzero(~anchor.unmasked))
                assert event.text.count(MASKED) == masked
                assert event.unmasked == len(anchor.tokens) - prompt - masked
    assert text == done.result.text
    if done.result.stop_reason in ("eos", "length") and not config.reference:
        assert text == decoder.tokenizer.decode(list(done.result.token_ids))


def test_streamed_text_is_final(decoder: Decoder) -> None:
    pytest.importorskip("llguidance")
    submitted, back, drafts = random_request(decoder, np.random.default_rng(1)), 0, 0
    with Engine(decoder, max_num_seqs=6, queue_limit=len(submitted)) as engine:
        running = []
        for prompt, config in submitted:
            steps: list[Step] = []
            running.append((engine.submit(prompt, config, drafts=True, on_step=steps.append), steps))
        for (prompt, config), (handle, steps) in zip(submitted, running, strict=True):
            check(decoder, config, len(prompt), list(handle), steps)
            back += sum(len(step.remasked) for step in steps)
            logged = [record_from_step(step).get("remasked", []) for step in steps]
            assert logged == [step.remasked.tolist() for step in steps]
            drafts += sum(isinstance(event, DraftEvent) for event in handle)
    assert back > 0, "nothing was ever remasked"
    assert drafts > 0
