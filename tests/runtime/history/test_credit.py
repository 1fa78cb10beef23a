"""Credit held against its rule over whole vocabularies, in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.history.said import said

from lopa.runtime.history.credit import credit_after, credited


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_credit_over_a_vocabulary_that_is_known_whole(seed: int) -> None:
    """8 tokens; positions come and go. The logits with 0.7 log(1 + credit) added are what is decided by."""
    rng = np.random.default_rng(seed)
    amounts: dict[int, np.ndarray] = {}
    memory = None
    for _ in range(4):
        positions = np.flatnonzero(rng.random(9) < 0.7) + 3
        if not len(positions):
            continue
        logits = rng.normal(scale=2, size=(len(positions), 8))
        rows = said(logits)
        memory = credit_after(memory, rows, positions)
        found = credited(rows, memory)
        amounts = {each: 0.8 * amounts.get(each, np.zeros(8)) for each in positions.tolist()}
        fused = logits.copy()
        for row, position in enumerate(positions.tolist()):
            p = np.exp(logits[row]) / np.exp(logits[row]).sum()
            amounts[position][p.argmax()] += p.max() ** 0.2
            fused[row] += 0.7 * np.log1p(amounts[position])
        expected = said(fused)
        np.testing.assert_allclose(found.topk_logprobs, expected.topk_logprobs, atol=1e-5)
        np.testing.assert_allclose(found.entropy, expected.entropy, atol=1e-5)
        np.testing.assert_array_equal(found.topk_ids[:, 0], expected.topk_ids[:, 0])
        assert memory.before(6).positions.tolist() == [each for each in positions.tolist() if each < 6]


def test_credit_of_the_best_of_a_large_vocabulary_is_exact() -> None:
    """Only what is among the 8 best has earned anything: the sum of all and the entropy are known from them."""
    rng = np.random.default_rng(2)
    logits = rng.normal(scale=2, size=(6, 200))
    positions, memory = np.arange(6), None
    for _ in range(3):
        memory = credit_after(memory, said(logits), positions)
    assert memory is not None
    fused = logits.copy()
    for row in fused:
        p = np.exp(row) / np.exp(row).sum()
        row[p.argmax()] += 0.7 * np.log1p((1 + 0.8 + 0.64) * p.max() ** 0.2)
    found, expected = credited(said(logits), memory), said(fused)
    np.testing.assert_allclose(found.topk_logprobs, expected.topk_logprobs, atol=1e-5)
    np.testing.assert_allclose(found.entropy, expected.entropy, atol=1e-5)


def test_a_ninth_token_takes_the_place_of_the_least_credit() -> None:
    memory, positions = None, np.array([4])
    for token in range(9):
        logits = np.zeros((1, 12))
        logits[0, token] = 3.0
        memory = credit_after(memory, said(logits), positions)
    assert memory is not None
    earned = dict(zip(memory.tokens[0].tolist(), memory.amounts[0].tolist(), strict=True))
    each = (np.exp(3.0) / (np.exp(3.0) + 11)) ** 0.2
    assert earned == {token: pytest.approx(each * 0.8 ** (8 - token)) for token in range(1, 9)}
