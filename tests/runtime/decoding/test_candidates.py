"""Candidates by the published rules, and draws."""

import math
from typing import Any

import numpy as np
import pytest
from tests.params import context_of, params_of

from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.candidates import candidates_from_rows
from lopa.runtime.errors import NonFiniteAnswerError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.context import Context

VOCABULARY = 40
MASK = 7


def reference_context(**options: Any) -> Context:
    return context_of(params_of(GenerationConfig(reference=True, **options)), mask_token=MASK)


def rows_from_logits(logits: np.ndarray) -> RowStatistics:
    """Return the statistics that an engine computes, in float64 by definition."""
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = np.argsort(-log_p, axis=-1, kind="stable")[..., :8]
    return RowStatistics(
        order.astype(np.int64),
        np.take_along_axis(log_p, order, -1).astype(np.float32),
        (-(np.exp(log_p) * log_p).sum(-1)).astype(np.float32),
    )


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(scale=2.0, size=(3, 50, VOCABULARY))


@pytest.mark.parametrize("confidence", ["probability", "margin", "neg_entropy"])
def test_greedy_candidates_follow_the_published_rules(logits: np.ndarray, confidence: str) -> None:
    """Section 3 of the specification, applied row by row."""
    context = reference_context(confidence=confidence)
    found = candidates_from_rows(rows_from_logits(logits), np.zeros((3, 50), int), context, step=1)
    for index in np.ndindex(3, 50):
        p = np.exp(logits[index]) / np.exp(logits[index]).sum()
        ranked = np.sort(p)[::-1]
        expected = {
            "probability": ranked[0],
            "margin": ranked[0] - ranked[1],
            "neg_entropy": sum(q * math.log(q + 1e-10) for q in p),
        }[confidence]
        assert found.tokens[index] == int(np.argmax(p))
        assert found.probabilities[index] == pytest.approx(ranked[0], rel=1e-5)
        assert found.confidences[index] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_only_the_published_behaviour_may_choose_the_mask_token(logits: np.ndarray) -> None:
    logits[..., MASK] = 9.0
    rows, positions = rows_from_logits(logits), np.zeros((3, 50), int)
    published = candidates_from_rows(rows, positions, reference_context(), step=1)
    default = candidates_from_rows(rows, positions, context_of(mask_token=MASK), step=1)
    assert (published.tokens == MASK).all()
    second = np.argsort(-logits, axis=-1, kind="stable")[..., 1]
    assert (default.tokens == second).all()
    assert (default.probabilities < published.probabilities).all()


def test_a_row_of_mask_tokens_alone_is_an_error(logits: np.ndarray) -> None:
    """A d2f decode would mask its position again in every step."""
    rows, positions = rows_from_logits(logits), np.arange(150).reshape(3, 50)
    context = context_of(mask_token=MASK, temperature=1.0, top_p=0.9)
    rows.topk_ids[1, 7, :7] = MASK
    assert candidates_from_rows(rows, positions, context, step=1).tokens[1, 7] == rows.topk_ids[1, 7, 7]
    rows.topk_ids[1, 7] = MASK
    with pytest.raises(NonFiniteAnswerError, match="no token that can be written at position 57"):
        candidates_from_rows(rows, positions, context, step=1)
    assert candidates_from_rows(rows, positions, reference_context(), step=1).tokens[1, 7] == MASK


@pytest.mark.parametrize("confidence", ["probability", "margin", "neg_entropy"])
def test_a_candidate_left_alone_is_certain_to_the_last_bit(logits: np.ndarray, confidence: str) -> None:
    """Positions with one candidate each are tied. Rounding, which differs between batches, must not rank them."""
    context = context_of(mask_token=-1, temperature=1.0, top_p=1e-3, confidence=confidence)
    rows, positions = rows_from_logits(logits), np.arange(150).reshape(3, 50)
    found = candidates_from_rows(rows, positions, context, step=1)
    assert (found.probabilities == 1).all()
    assert (found.confidences == (0 if confidence == "neg_entropy" else 1)).all()
