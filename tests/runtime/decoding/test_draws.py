"""Draws have the requested distribution, and depend on seed, step and position only."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.params import params_of
from transformers import MinPLogitsWarper

from lopa.runtime.contract import Float32
from lopa.runtime.decoding.candidates import draw_candidates, draw_tokens, filter_candidates, filter_vocabulary
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy.draws import uniform_at


def params(**options: Any) -> DecodingParams:
    return params_of(**{"strategy": "threshold", "temperature": 1.0, "seed": 5, **options})


def plain_filter(p: list[float], top_k: int, top_p: float, *, of_kept: bool) -> list[float]:
    """Return the distribution of one row after top_p and top_k; `of_kept` applies top_p to what top_k keeps."""
    order = sorted(range(len(p)), key=lambda i: -p[i])
    first = order[:top_k] if top_k else order
    whole = sum(p[i] for i in first) if of_kept else sum(p)
    kept, mass = [], 0.0
    for i in first:
        if not kept or mass / whole < top_p:
            kept.append(i)
        mass += p[i]
    total = sum(p[i] for i in kept)
    return [p[i] / total if i in kept else 0.0 for i in range(len(p))]


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (0, 0.6), (9, 1.0), (12, 0.7), (20, 0.3)])
@pytest.mark.parametrize("reference", [False, True])
def test_filters_over_the_vocabulary(top_k: int, top_p: float, reference: bool) -> None:
    rng = np.random.default_rng(top_k)
    logits = rng.normal(size=(6, 40)).astype(np.float32) * 2
    filtering = params(top_k=top_k, top_p=top_p, temperature=0.7, reference=reference, alignment="absolute")
    found = np.exp(filter_vocabulary(logits, filtering, without=()))
    for row, own in zip(found, logits.astype(np.float64) / 0.7, strict=True):
        p = (np.exp(own) / np.exp(own).sum()).tolist()
        np.testing.assert_allclose(row, plain_filter(p, top_k, top_p, of_kept=reference), atol=1e-6)


def test_the_mask_token_is_never_drawn() -> None:
    logits = np.zeros((1, 20), np.float32)
    logits[0, 3] = 50
    found = filter_vocabulary(logits, params(top_k=0), without=(3,))
    assert np.exp(found[0, 3]) == 0
    np.testing.assert_allclose(np.exp(found).sum(), 1, atol=1e-6)


@pytest.mark.parametrize("min_p", [0.02, 0.2, 1.0])
def test_min_p_keeps_what_transformers_keeps(min_p: float) -> None:
    """The 8 best candidates have the whole distribution where the eighth is below min_p times the best one."""
    logits = torch.from_numpy(np.random.default_rng(3).normal(size=(200, 40)).astype(np.float32) * 4)
    expected = MinPLogitsWarper(min_p)(torch.zeros(1), logits.clone()).softmax(-1)
    found = filter_vocabulary(logits.numpy(), params(top_k=0, min_p=min_p), without=())
    np.testing.assert_allclose(np.exp(found), expected, atol=1e-5)
    logprobs, ids = logits.log_softmax(-1).topk(8)
    of_best, found = expected.gather(1, ids), np.exp(filter_candidates(logprobs.numpy(), params(min_p=min_p)))
    np.testing.assert_allclose(found, of_best / of_best.sum(1, keepdim=True), atol=1e-5)
    is_whole = logprobs[:, 7] - logprobs[:, 0] < np.log(min_p)
    assert len(found[is_whole]) > 0
    np.testing.assert_allclose(found[is_whole], of_best[is_whole], atol=1e-5)


@pytest.mark.parametrize("of_published_sdar", [False, True])
def test_filters_over_candidates(of_published_sdar: bool) -> None:
    """Eight candidates hold 0.8 of the probability, best first."""
    p = np.array([0.3, 0.2, 0.1, 0.08, 0.06, 0.03, 0.02, 0.01])
    filtering = params(top_k=3, top_p=0.55, reference=of_published_sdar, alignment="absolute")
    found = filter_candidates(np.log(p).astype(np.float32)[None], filtering)
    # 0.3 + 0.2 is 0.5 of the whole and 0.83 of the three that top_k keeps: a third candidate, or none.
    expected = [0.6, 0.4, 0.0] if of_published_sdar else [0.5, 1 / 3, 1 / 6]
    np.testing.assert_allclose(np.exp(found[0]), [*expected, *[0.0] * 5], atol=1e-6)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.51, 2), (0.75, 2), (0.875, 3)])
def test_candidates_that_reach_top_p_exactly_suffice(top_p: float, kept: int) -> None:
    p = np.float32([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.0078125])
    logprobs = np.log(p)
    assert (np.exp(logprobs) == p).all(), "the sums below are exact"
    assert np.isfinite(filter_candidates(logprobs[None], params(top_p=top_p))).sum() == kept


def counted(drawn: np.ndarray[Any, Any], size: int) -> Float32:
    shares: Float32 = (np.bincount(drawn.ravel(), minlength=size) / drawn.size).astype(np.float32)
    return shares


def test_draws_have_their_distribution() -> None:
    """Four standard deviations of a share of 0.3 are 0.013 with 20,000 draws."""
    p = np.float32([0.4, 0.3, 0.15, 0.1, 0.05, 0, 0, 0])
    with np.errstate(divide="ignore"):
        logprobs = np.log(p)
    positions = np.arange(2000)
    rows = np.broadcast_to(logprobs, (2000, 8))
    of_candidates = np.stack([draw_candidates(rows, params(), step=step, positions=positions) for step in range(10)])
    of_tokens = np.stack([draw_tokens(rows, params(), step=step, positions=positions) for step in range(10)])
    for drawn in (of_candidates, of_tokens):
        np.testing.assert_allclose(counted(drawn, 8), p, atol=0.014)
        # Adjacent steps and positions are independent.
        assert abs(np.mean(drawn[1:] == drawn[:-1]) - (p**2).sum()) < 0.02
        assert abs(np.mean(drawn[:, 1:] == drawn[:, :-1]) - (p**2).sum()) < 0.02


@pytest.mark.parametrize("positions", [[], [0], [7], [5, 6, 9], [8003, 7999, 8000], [[3, 90], [4, 91]]])
@pytest.mark.parametrize("width", [1, 8])
def test_numbers_of_some_positions_equal_those_of_the_whole_table(positions: Any, width: int) -> None:
    """The table of all positions is the definition, which other runtimes implement."""
    table = np.random.Generator(np.random.Philox(key=5, counter=[0, 0, 3, 2])).random((8004, width))
    at = np.array(positions, np.int64)
    np.testing.assert_array_equal(uniform_at(at, width, seed=5, step=3, stream=2), table[at])


def test_a_draw_is_the_same_with_any_batch_mates() -> None:
    rng = np.random.default_rng(0)
    logprobs = np.log(rng.dirichlet(np.ones(50), 30)).astype(np.float32)
    positions = np.arange(100, 130)
    for drawn in (draw_tokens, lambda rows, *more, **named: draw_candidates(rows[..., :8], *more, **named)):
        every = drawn(logprobs, params(), step=3, positions=positions)
        some = rng.permutation(30)[:7]
        alone = drawn(logprobs[some], params(), step=3, positions=positions[some])
        np.testing.assert_array_equal(alone, every[some])
        twice = drawn(np.stack([logprobs, logprobs]), params(), step=3, positions=np.stack([positions, positions]))
        np.testing.assert_array_equal(twice, [every, every])
        for other in (params(seed=6), params()):
            step = 4 if other == params() else 3
            assert (drawn(logprobs, other, step=step, positions=positions) != every).any()
