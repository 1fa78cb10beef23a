"""KLASS: divergences between steps and stable positions, compared with direct computations."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import params_of
from tests.runtime.strategy.blocks import random_block, unmasked_of
from tests.runtime.strategy.rows_of_logits import rows_of

from lopa.runtime.strategy.memories import divergence, divergences_after


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_divergence_is_exact_for_known_tokens(seed: int) -> None:
    """The divergence is exact with a vocabulary of K tokens, and a lower bound with more tokens."""
    rng = np.random.default_rng(seed)
    for vocabulary in (8, 30):
        logits = rng.normal(scale=3, size=(2, 5, vocabulary))
        now, last = rows_of(logits[0]), rows_of(logits[1])
        p, q = (np.exp(each - np.log(np.exp(each).sum(-1, keepdims=True))) for each in logits)
        whole = (p * np.log(p / q)).sum(-1)
        found = divergence(now.topk_ids, now.topk_logprobs, last.topk_ids, last.topk_logprobs)
        if vocabulary == 8:
            np.testing.assert_allclose(found, whole, rtol=1e-3, atol=1e-4)
        else:
            assert (found <= whole + 1e-4).all()
            assert (found >= -1e-6).all()


def test_two_small_steps_in_a_row_make_a_position_stable() -> None:
    """The four steps have positions that stay the same, change once, appear late, or change in every step."""
    rng = np.random.default_rng(0)
    still, other = rng.normal(scale=3, size=(2, 20))
    logits = [
        {5: still, 6: other, 9: still},
        {5: still, 6: still, 9: other},
        {5: still, 6: still, 7: still, 9: still},
        {5: still, 6: still, 7: still, 9: other},
    ]
    memory, seen = None, []
    for step in logits:
        positions = np.array(sorted(step))
        memory = divergences_after(memory, rows_of(np.stack([step[each] for each in sorted(step)])), positions)
        seen.append(positions[memory.are_stable(positions, 0.01)].tolist())
    assert seen == [[], [], [5], [5, 6]]
    assert memory is not None
    assert memory.before(7).positions.tolist() == [5, 6]


def test_klass_unmasks_certain_and_stable_positions_or_the_best() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        block = random_block(rng, fully_activated=bool(rng.random() < 0.7))
        rows = rows_of(rng.normal(scale=3, size=(len(block.positions), 20)))
        memory = None
        for _ in range(3):
            memory = divergences_after(memory, rows, block.positions)
        assert memory is not None
        moved = rng.random(len(block.positions)) < 0.5
        memory.moved[moved, rng.integers(0, 2)] = 0.02
        p, free = block.candidates.probabilities, np.flatnonzero(block.masked).tolist()
        sure = [i for i in free if p[i] >= np.float32(0.9) and not moved[i]]
        best = sorted(free, key=lambda i: -block.candidates.confidences[i])[:1] if block.fully_activated else []
        held = replace(block, memory=memory)
        assert unmasked_of(held, params_of(strategy="klass")) == (sure or best)
        assert unmasked_of(held, params_of(strategy="klass", kl_threshold=0.05)) == (
            [i for i in free if p[i] >= np.float32(0.9)] or best
        )
