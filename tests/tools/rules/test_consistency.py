"""Consistency of two steps, compared with its definition over sets, and in decodes."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.strategy.agreement import params_with, steps_of
from tests.runtime.strategy.rows_of_logits import rows_of
from tools.rules.consistency import CONSISTENCY, Predictions, agreed_positions, with_predictions

from lopa.runtime import Decoder
from lopa.runtime.contract import Floats
from lopa.runtime.strategy import register_strategy, strategies
from lopa.tiny import EVAL

Step = dict[int, Floats]
"""Logits of a step by masked position."""


def agreed_by_definition(last: Step, now: Step, count: int) -> list[int]:
    """Return the agreed positions of two steps, from whole distributions in float64."""

    def entropy(logits: Floats) -> float:
        p = np.exp(logits) / np.exp(logits).sum()
        return float(-(p * np.log(p)).sum())

    left = sorted((each for each in last if each in now), key=lambda each: entropy(last[each]))[:count]
    best = sorted(now, key=lambda each: entropy(now[each]))[:count]
    if not best or best[0] not in left:
        return []
    return sorted(each for each in best if each in left and last[each].argmax() == now[each].argmax())


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_agreed_positions(seed: int, count: int) -> None:
    """Steps are similar, so that many tokens agree; positions leave when unmasked, and a new block brings others."""
    rng = np.random.default_rng(seed)
    last: Step = {each: rng.normal(scale=3, size=9) for each in np.flatnonzero(rng.random(12) < 0.8).tolist()}
    now = {each: logits + rng.normal(scale=1.5, size=9) for each, logits in last.items() if rng.random() < 0.8}
    now.update({each: rng.normal(scale=3, size=9) for each in range(12, 12 + int(rng.integers(0, 4)))})
    memory = None
    for step in (last, now):
        rows = rows_of(np.array(list(step.values())).reshape(-1, 9))
        positions = np.array(list(step), np.int64)
        agreed = agreed_positions(memory, positions, rows.topk_ids[:, 0], rows.entropy, count)
        assert memory is not None or not len(agreed)
        memory = Predictions(positions, rows.topk_ids[:, 0], rows.entropy, agreed)
    assert agreed.tolist() == agreed_by_definition(last, now, count)


def test_predictions_are_cut_behind_an_end_of_text() -> None:
    memory = Predictions(np.array([3, 5, 8]), np.array([7, 6, 5]), np.ones(3, np.float32), np.array([5, 8])).before(8)
    assert [memory.positions.tolist(), memory.tokens.tolist(), memory.agreed.tolist()] == [[3, 5], [7, 6], [5]]
    assert len(memory.entropies) == 2


@pytest.fixture
def decoder(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoder]:
    monkeypatch.setattr(strategies, "_registered", {})
    register_strategy(CONSISTENCY)
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        yield decoder


@pytest.mark.parametrize(("branches", "threshold"), [(1, 1.0), (1, 0.9), (3, 0.9)])
def test_a_step_unmasks_agreed_and_probable_tokens(decoder: Decoder, branches: int, threshold: float) -> None:
    """A complete block without such a token unmasks its most confident one."""
    text = json.loads(EVAL.read_text(encoding="utf-8").splitlines()[1])["prompt"]
    prompt = tuple(decoder.tokenizer.encode(text, add_bos=True))
    own = {"compared_positions": 6}
    params = params_with(CONSISTENCY, own, branches=branches, skip_threshold=threshold, max_new_tokens=96)
    improbable = 0
    last: dict[int, tuple[float, int]] | None = None
    for step in steps_of(decoder, prompt, params):
        candidates, winner = step.candidates[step.winner], step.branches[step.winner]
        positions = step.rows.sampled[step.winner].tolist()
        assert candidates.entropies is not None
        pairs = zip(candidates.entropies.tolist(), candidates.tokens.tolist(), strict=True)
        now = dict(zip(positions, pairs, strict=True))
        probable = dict(zip(positions, (candidates.probabilities > np.float32(threshold)).tolist(), strict=True))
        ranked = sorted(now, key=lambda each: (now[each][0], each))
        agreed: set[int] = set()
        if last is not None and ranked:
            left = sorted((each for each in last if each in now), key=lambda each: (last[each][0], each))[:6]
            if ranked[0] in left:
                agreed = {each for each in ranked[:6] if each in left and last[each][1] == now[each][1]}
        expected: list[int] = []
        for block in winner.active:
            inside = [each for each in positions if block.start <= each < block.end]
            chosen = [each for each in inside if each in agreed or probable[each]]
            best = [each for each in ranked if each in inside][:1]
            expected += chosen or (best if block.fully_activated else [])
        improbable += sum(each in agreed and not probable[each] for each in expected)
        assert step.unmasked.positions.tolist() == sorted(expected)
        last = now
    assert improbable > 0


def test_rows_stay_unchanged() -> None:
    rows, positions = rows_of(np.random.default_rng(0).normal(size=(3, 9))), np.arange(3)
    params = params_with(CONSISTENCY, {})
    found, memory = with_predictions(rows, positions, None, params)
    assert found is rows
    assert isinstance(memory, Predictions)
    assert not len(memory.agreed)
