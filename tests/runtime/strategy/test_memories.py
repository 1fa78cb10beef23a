"""Credit, compared with its rule over whole vocabularies in float64."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import params_of
from tests.runtime.strategy.rows_of_logits import rows_of

from lopa.runtime.decoding.candidates import filter_vocabulary
from lopa.runtime.strategy.memories import add_credit, credit_after
from lopa.runtime.strategy.strategies import with_credit


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.4, 1.0, 2.5]))
def test_credit_over_a_whole_vocabulary(seed: int, temperature: float) -> None:
    """Compare with 0.7 log(1 + credit) added to the logits over the temperature, with 8 tokens and changing
    positions."""
    rng = np.random.default_rng(seed)
    amounts: dict[int, np.ndarray] = {}
    memory = None
    for _ in range(4):
        positions = np.flatnonzero(rng.random(9) < 0.7) + 3
        if not len(positions):
            continue
        logits = rng.normal(scale=2, size=(len(positions), 8))
        rows = rows_of(logits, temperature)
        memory = credit_after(memory, rows, positions)
        found = add_credit(rows, memory, temperature)
        amounts = {each: 0.8 * amounts.get(each, np.zeros(8)) for each in positions.tolist()}
        fused = logits / temperature
        for row, position in enumerate(positions.tolist()):
            p = np.exp(logits[row] / temperature) / np.exp(logits[row] / temperature).sum()
            amounts[position][p.argmax()] += p.max() ** 0.2
            fused[row] += 0.7 * np.log1p(amounts[position])
        expected = rows_of(fused)
        np.testing.assert_allclose(found.topk_logprobs, expected.topk_logprobs, atol=1e-5)
        np.testing.assert_allclose(found.entropy, expected.entropy, atol=1e-5)
        np.testing.assert_allclose(found.logits, fused * temperature, atol=1e-5)
        np.testing.assert_array_equal(rows.logits, logits.astype(np.float32))  # the forward's logits stay unchanged
        np.testing.assert_array_equal(found.topk_ids[:, 0], expected.topk_ids[:, 0])
        assert memory.before(6).positions.tolist() == [each for each in positions.tolist() if each < 6]


def test_logits_include_credit_of_tokens_that_are_no_longer_among_the_best() -> None:
    rng = np.random.default_rng(3)
    logits, positions = rng.normal(scale=2, size=(2, 200)), np.array([4, 7])
    first, last = np.argsort(logits, axis=1)[:, 0], np.argmax(logits, axis=1)
    before = logits.copy()
    before[[0, 1], first] = 9.0  # the best of the first step and the least probable of the second
    memory = credit_after(credit_after(None, rows_of(before), positions), rows_of(logits), positions)
    expected = logits.copy()
    for row in range(2):
        p = np.exp(before[row]) / np.exp(before[row]).sum()
        expected[row, first[row]] += 0.5 * 0.7 * np.log1p(0.8 * p.max() ** 0.2)
        p = np.exp(logits[row]) / np.exp(logits[row]).sum()
        expected[row, last[row]] += 0.5 * 0.7 * np.log1p(p.max() ** 0.2)
    found = add_credit(rows_of(logits), memory, 0.5)
    assert (found.topk_ids != first[:, None]).all()
    np.testing.assert_allclose(found.logits, expected, atol=1e-5)


def test_draws_from_logits_include_credit() -> None:
    """Draws at the request's temperature follow the distribution of the 8 best, which here are all tokens."""
    params = params_of(strategy="credit", temperature=0.4, top_k=0)
    logits, positions = np.random.default_rng(5).normal(size=(3, 8)), np.arange(3)
    rows, memory = with_credit(rows_of(logits, 0.4), positions, None, params)
    rows, _ = with_credit(rows_of(logits, 0.4), positions, memory, params)
    assert rows.logits is not None
    drawn_of = filter_vocabulary(rows.logits, params, without=())
    np.testing.assert_allclose(np.take_along_axis(drawn_of, rows.topk_ids, 1), rows.topk_logprobs, atol=1e-5)
