"""Scoring requests among decodes: neither changes the other, and each ends early like any request."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import WAIT, alone, result_of
from tools.random_configs import random_config, random_prompt

from lopa.runtime import Decoder, Engine, Request
from lopa.runtime.scoring import scoring


@pytest.fixture(scope="module")
def decoder(tiny_bundle_logits: Path) -> Iterator[Decoder]:
    with Decoder.open(tiny_bundle_logits, threads=1) as opened:
        yield opened


PROMPT = "Question: 2 + 3?\nAnswer:"
CHOICES: Any = [" So the answer is 5.", " The", (7, 8, 9)]


def assert_same_scores(found: Any, expected: Any) -> None:
    """Compare two results. Other shapes of a forward change the last bits."""
    assert (found.text, found.token_ids, found.steps) == (expected.text, expected.token_ids, expected.steps)
    for one, other in zip(found.scores.choices, expected.scores.choices, strict=True):
        assert one.token_logprobs == pytest.approx(other.token_logprobs, abs=1e-4)


@pytest.mark.parametrize("seed", range(1))
def test_scores_and_decodes_do_not_change_each_other(decoder: Decoder, seed: int) -> None:
    rng = np.random.default_rng(seed)
    decodes = [Request(random_prompt(rng, decoder), random_config(rng, decoder)) for _ in range(6)]
    scores = [
        Request(random_prompt(rng, decoder), decoder.config(choices=CHOICES[: number + 1], attention=attention))
        for number in range(3)
        for attention in ("full", "block_causal")
    ]
    expected = [alone(decoder, each.prompt, each.config) for each in (*decodes, *scores)]
    with Engine(decoder, max_num_seqs=5, queue_limit=100) as engine:
        order = rng.permutation(len(expected)).tolist()
        submitted = [*decodes, *scores]
        handles = {number: engine.submit(submitted[number].prompt, submitted[number].config) for number in order}
        for number, handle in handles.items():
            if number < len(decodes):
                assert result_of(handle).token_ids == expected[number].token_ids
            else:
                assert_same_scores(result_of(handle), expected[number])
        assert engine.status.cache_rows == 0


def test_a_score_is_cancelled_between_forwards(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MAX_ROWS", 1)  # one window per forward
    forwards, cancelled = 0, threading.Event()
    inner = decoder.session.wait

    def counted(ticket: Any) -> Any:
        nonlocal forwards
        forwards += 1
        if forwards == 3:
            handle.cancel()
            cancelled.set()
        return inner(ticket)

    monkeypatch.setattr(decoder.session, "wait", counted)
    with Engine(decoder, max_num_seqs=2) as engine:
        handle = engine.submit(PROMPT, choices=[tuple(range(20, 60))])
        result = handle.result(WAIT)
        assert cancelled.is_set()
        assert (result.stop_reason, result.scores, result.text, result.steps) == ("cancelled", None, "", 3)


@pytest.mark.parametrize(
    ("options", "reason"), [({"deadline": 0.0}, "time_limit"), ({"time_limit": 1e-9}, "time_limit")], ids=str
)
def test_a_score_that_is_late_has_no_scores(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, options: Any, reason: str
) -> None:
    monkeypatch.setattr(scoring, "MAX_ROWS", 1)
    with Engine(decoder) as engine:
        result = engine.submit(PROMPT, choices=CHOICES, logprobs=True, top_logprobs=2, **options).result(WAIT)
        assert (result.stop_reason, result.scores, result.token_ids) == (reason, None, ())
        assert (result.logprobs, result.top_logprobs) == ((), ())


def test_equal_scores_are_computed_once_and_others_are_not(decoder: Decoder) -> None:
    with Engine(decoder, max_num_seqs=2) as engine:
        before = engine.status.rounds
        same = engine.submit_many([PROMPT] * 3, choices=CHOICES)
        texts = {handle.result(WAIT).text for handle in same}
        assert engine.status.rounds == before + 1
        assert len(texts) == 1
        configs = [decoder.config(choices=[each]) for each in CHOICES]
        several = engine.submit_many([Request(PROMPT, config) for config in configs])
        assert [handle.result(WAIT).token_ids for handle in several] == [
            alone(decoder, PROMPT, config).token_ids for config in configs
        ]
