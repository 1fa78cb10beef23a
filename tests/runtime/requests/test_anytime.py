"""Answers that a limit ends early: committed text only, or completed from the last forward (anytime)."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.runtime.requests.batch_mates import decoded

from lopa.runtime import Decoder, Engine
from lopa.runtime.decoding.step import Step

PROMPT = "Question: Ivy has 3 shells and finds 4 more. How many?\nAnswer:"
STRATEGIES: tuple[dict[str, Any], ...] = (
    {"strategy": "lopa", "branches": 4},
    {"strategy": "d2f", "speculative": True, "branches": 3},
    {"strategy": "vanilla", "temperature": 0.8, "seed": 3},
    {"strategy": "wino"},
    {"strategy": "dream"},
)

PUBLISHED = tuple(each for each in STRATEGIES if "speculative" not in each and each["strategy"] != "wino")
"""Strategies that reference mode has."""


def completed(steps: list[Step], unmasked: dict[int, int]) -> tuple[dict[int, int], list[float]]:
    """Return tokens by position with the last step's candidates added, and the probabilities of those added."""
    last = steps[-1]
    number = last.winner
    assert last.candidates is not None
    positions, candidates = last.rows.sampled[number], last.candidates[number]
    found, added = dict(unmasked), []
    for place, position in enumerate(positions.tolist()):
        if position not in unmasked:
            found[position] = int(candidates.tokens[place])
            added.append(float(candidates.probabilities[place]))
    return found, added


@pytest.mark.parametrize("options", STRATEGIES, ids=str)
@pytest.mark.parametrize("forwards", [1, 4])
def test_the_last_forward_completes_the_answer(decoder: Decoder, options: dict[str, Any], forwards: int) -> None:
    early, steps = decoded(decoder, PROMPT, max_new_tokens=48, max_forwards=forwards, anytime=True, **options)
    assert early.steps == len(steps) == forwards
    assert early.stop_reason == "step_limit"
    committed = decoder.generate(PROMPT, max_new_tokens=48, max_forwards=forwards, **options)
    assert committed.stop_reason == "step_limit"
    assert committed.draft_probability is None
    assert early.token_ids[: len(committed.token_ids)] == committed.token_ids
    assert decoder.bundle.manifest.special_tokens.mask not in early.token_ids
    with Engine(decoder, max_num_seqs=1) as engine:
        handle = engine.submit(PROMPT, max_new_tokens=48, max_forwards=forwards, anytime=True, **options)
        assert handle.result(60).token_ids == early.token_ids


@pytest.mark.parametrize("options", [{"strategy": "lopa", "branches": 4}, {"strategy": "threshold"}], ids=str)
def test_the_tokens_are_the_most_probable_ones_of_the_last_forward(decoder: Decoder, options: dict[str, Any]) -> None:
    for forwards in (1, 2, 3, 5):
        more = {"max_new_tokens": 48, "max_forwards": forwards, "anytime": True, "logprobs": True, "top_logprobs": 2}
        early, steps = decoded(decoder, PROMPT, **more, **options)
        prompt = len(early.prompt_ids)
        unmasked = {
            int(position): int(token)
            for step in steps
            for position, token in zip(step.unmasked.positions, step.unmasked.tokens, strict=True)
        }
        for before, step in pairwise(steps):
            won = step.winner
            if won < len(before.lookaheads):
                unmasked[before.lookaheads[won].position] = before.lookaheads[won].token
        expected, probabilities = completed(steps, unmasked)
        ids = [expected[prompt + number] for number in range(len(early.token_ids))]
        assert list(early.token_ids) == ids
        assert early.draft_probability == pytest.approx(np.mean(probabilities), abs=1e-6)
        assert early.logprobs is not None
        assert early.top_logprobs is not None
        assert not np.isnan(early.logprobs).any()
        assert all(best[0].token_id == token for best, token in zip(early.top_logprobs, ids, strict=True))


def test_a_deadline_returns_a_complete_answer(decoder: Decoder) -> None:
    options: dict[str, Any] = {"strategy": "dream", "max_new_tokens": 400}
    with Engine(decoder) as engine:
        engine.submit(PROMPT, max_new_tokens=8).result(60)
        early = engine.submit(PROMPT, deadline=0.4, anytime=True, **options).result(60)
    assert early.stop_reason == "time_limit"
    assert 0 < early.steps < 400
    eos = decoder.bundle.manifest.special_tokens.ends
    assert len(early.token_ids) == 400 or early.token_ids[-1] in eos
    assert early.draft_probability is not None
    limited = decoder.generate(PROMPT, time_limit=0.2, anytime=True, **options)
    assert limited.stop_reason == "time_limit"
    assert len(limited.token_ids) == 400 or limited.token_ids[-1] in eos


def test_all_holes_are_filled(llada: Decoder) -> None:
    parts = "Ivy has <hole:6> and finds <hole:6> more.\n"
    early = llada.fill(parts, max_forwards=1, anytime=True, skip_threshold=1.0)
    assert early.holes is not None
    assert len(early.holes) == 2
    assert len(early.token_ids) == early.tokens >= 12
    assert early.draft_probability is not None
    steps: list[Step] = []
    plain = llada.fill(parts, skip_threshold=1.0, max_forwards=1, on_step=steps.append)
    positions = sorted(steps[0].rows.sampled[steps[0].winner].tolist())
    candidates = steps[0].candidates
    assert candidates is not None
    assert early.token_ids == tuple(candidates[0].tokens[np.argsort(steps[0].rows.sampled[0])].tolist())
    assert len(positions) == len(early.token_ids)
    assert plain.draft_probability is None


@pytest.mark.parametrize("limit", [{"max_forwards": 2}, {"time_limit": 1e-9}, {"stop": ("3",)}], ids=str)
@pytest.mark.parametrize("options", PUBLISHED, ids=str)
def test_a_limit_ends_an_answer_of_reference_mode_before_its_first_mask(
    decoder: Decoder, options: dict[str, Any], limit: dict[str, Any]
) -> None:
    """The published loops have none of these limits, and return masked positions only at their own."""
    more = {"max_new_tokens": 48, "reference": True, **options}
    whole, early = (decoder.generate(PROMPT, **more, **given) for given in ({}, limit))
    assert early.stop_reason in ("step_limit", "time_limit", "stop_string")
    assert decoder.bundle.manifest.special_tokens.mask not in early.token_ids
    assert early.token_ids == whole.token_ids[: early.tokens]
    assert len(early.token_ids) < len(whole.token_ids)
