"""The Info-Gain score on LoPA's branches, compared with its definition over whole vocabularies in float64."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import params_of
from tests.runtime.strategy.agreement import params_with, steps_of
from tests.runtime.strategy.rows_of_logits import rows_of
from tools.rules.info_gain import INFO_GAIN, Entropies, with_immediate_cost

from lopa.runtime import Decoder
from lopa.runtime.contract import Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import Memory, register_strategy, strategies
from lopa.tiny import EVAL


def entropies_of(logits: Floats) -> Floats:
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return np.asarray(-(p * np.log(p)).sum(-1))


def plan_of_cost(weight: float) -> DecodingParams:
    return dataclasses.replace(params_of(strategy="lopa"), own={"cost_weight": weight})


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 1.0, 3.0]))
def test_the_mean_confidence_is_the_score(seed: int, weight: float) -> None:
    """J(a) = -C(a) - H_next(a), where candidates share some tokens, and a new block may have opened."""
    rng = np.random.default_rng(seed)
    masked = np.flatnonzero(rng.random(20) < 0.7)
    logits = rng.normal(scale=3, size=(len(masked), 12))
    params = plan_of_cost(weight)
    _, memory = with_immediate_cost(rows_of(logits), masked, None, params)
    shared = set(rng.permutation(masked)[: len(masked) // 3].tolist())
    left = [each for each in masked.tolist() if each not in shared]
    more = list(range(20, 20 + rng.integers(0, 4)))
    found, expected = [], []
    for action in [shared, *(shared | {each} for each in left)]:
        still = np.array([each for each in masked.tolist() if each not in action] + more, np.int64)
        if not len(still):
            continue
        following = rng.normal(scale=3, size=(len(still), 12))
        rows, after = with_immediate_cost(rows_of(following), still, memory, params)
        found.append(float((-rows.entropy).mean()))
        cost = entropies_of(logits)[np.isin(masked, list(action))].sum()
        expected.append(-weight * cost - entropies_of(following).mean())
        assert isinstance(after, Entropies)
        np.testing.assert_allclose(after.values, entropies_of(following), atol=1e-5)  # without the cost
        np.testing.assert_array_equal(after.positions, still)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_cost_does_not_change_the_forward_s_rows() -> None:
    rng = np.random.default_rng(0)
    rows, positions = rows_of(rng.normal(size=(4, 9))), np.arange(4)
    before = rows.copy()
    memory = Entropies(np.arange(6), np.ones(6, np.float32))
    found, _ = with_immediate_cost(rows, positions, memory, plan_of_cost(1.0))
    np.testing.assert_array_equal(rows.entropy, before.entropy)
    np.testing.assert_allclose(found.entropy, before.entropy + 2, rtol=1e-6)
    np.testing.assert_array_equal(found.topk_logprobs, before.topk_logprobs)


def test_positions_behind_an_end_of_text_cost_nothing() -> None:
    memory = Entropies(np.array([3, 5, 8]), np.array([1, 2, 4], np.float32))
    kept = memory.before(8)
    assert (kept.positions.tolist(), kept.values.tolist()) == ([3, 5], [1.0, 2.0])


@pytest.fixture
def decoder(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoder]:
    monkeypatch.setattr(strategies, "_registered", {})
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        yield decoder


def prompts(decoder: Decoder, count: int) -> list[tuple[int, ...]]:
    lines = EVAL.read_text(encoding="utf-8").splitlines()[:count]
    return [tuple(decoder.tokenizer.encode(json.loads(line)["prompt"], add_bos=True)) for line in lines]


@pytest.mark.parametrize("weight", [1.0, 0.1])
def test_the_winner_has_the_largest_score(decoder: Decoder, weight: float) -> None:
    """Recompute every winner from the forwards' own entropies and the tokens that the branches have."""
    seen: list[tuple[Int64, Floats]] = []

    def recorded(rows: RowStatistics, positions: Int64, memory: Memory | None, params: DecodingParams) -> Any:
        seen.append((positions, rows.entropy.astype(np.float64)))
        return with_immediate_cost(rows, positions, memory, params)

    register_strategy(dataclasses.replace(INFO_GAIN, name="recorded", rescore=recorded))
    params = params_with(
        strategies.strategy_from_name("recorded"), {"cost_weight": weight}, branches=3, max_new_tokens=96
    )
    lookahead_wins = compared = 0
    for prompt in prompts(decoder, 4):
        last: tuple[Int64, Floats] | None = None
        for step in steps_of(decoder, prompt, params):
            scores = []
            for branch, (positions, entropies) in zip(step.branches, seen, strict=True):
                cost = 0.0
                if last is not None:
                    new = branch.unmasked[last[0][last[0] < len(branch.unmasked)]]
                    cost = weight * last[1][: len(new)][new].sum()
                scores.append(-cost - entropies.mean() if len(positions) else np.inf)
            best = np.sort(scores)[::-1]
            if len(scores) > 1 and best[0] - best[1] > 1e-4:
                compared += 1
                lookahead_wins += step.winner < len(scores) - 1
                assert step.winner == int(np.argmax(scores))
            last = seen[step.winner]
            seen.clear()
    assert compared > 20
    assert lookahead_wins > 0


def test_without_cost_it_is_lopa(decoder: Decoder) -> None:
    register_strategy(INFO_GAIN)
    texts = [list(each) for each in prompts(decoder, 3)]
    shared = {"branches": 4, "max_new_tokens": 96}
    one = decoder.generate(texts, decoder.config(strategy="lopa", confidence="neg_entropy", **shared))
    free = decoder.config(strategy="info_gain", strategy_options={"cost_weight": 0.0}, **shared)
    costly = decoder.config(strategy="info_gain", **shared)
    expected = [(each.token_ids, each.steps) for each in one]
    assert [(each.token_ids, each.steps) for each in decoder.generate(texts, free)] == expected
    assert [(each.token_ids, each.steps) for each in decoder.generate(texts, costly)] != expected
