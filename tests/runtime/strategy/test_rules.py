"""The stages of single strategies, compared with direct versions of each rule on random blocks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import params_of
from tests.runtime.strategy.blocks import random_block, unmasked_of

from lopa.runtime.contract import Floats
from lopa.runtime.strategy import BlockView

seeds = st.integers(0, 2**32 - 1)
bounds = st.sampled_from([0.0, 0.0625, 0.125, 0.25, 0.5, 3.0, float("inf")])
leading = st.booleans()
"""True for a block with the answer's first masked position, which it must unmask."""


def unmasked(block: BlockView, **options: Any) -> list[int]:
    return unmasked_of(block, params_of(**options))


def order_of(block: BlockView, ranks: Floats | None = None, *, leads: bool = False) -> list[int]:
    """Return the masked positions, the most confident first, ties by position. With `leads` the first one leads."""
    confidences = block.candidates.confidences if ranks is None else ranks
    free = np.flatnonzero(block.masked).tolist()
    first = free[:1] if leads else []
    return [*first, *sorted((i for i in free if i not in first), key=lambda i: -confidences[i])]


@settings(deadline=None)
@given(seeds, st.booleans(), bounds, st.booleans(), leading)
def test_entropy_bound(seed: int, fully_activated: bool, gamma: float, by_probability: bool, leads: bool) -> None:
    """Ranked by entropy the largest comes last; by probability it may be anywhere. Sums are exact and may equal the
    bound."""
    rng = np.random.default_rng(seed)
    block = replace(random_block(rng, fully_activated=fully_activated), leads=leads)
    entropies = rng.choice(np.float32([0.0625, 0.125, 0.25, 0.5, 1.5]), len(block.positions))
    ranks = block.candidates.probabilities if by_probability else -entropies
    block = replace(block, candidates=replace(block.candidates, entropies=entropies, confidences=ranks))
    ranked, longest = order_of(block, leads=leads), 0
    for length in range(1, len(ranked) + 1):
        own = [float(entropies[i]) for i in ranked[:length]]
        if sum(own) - max(own) <= gamma:
            longest = length
    best = max((block.candidates.probabilities[i] for i in ranked), default=0)
    expected = sorted(ranked[:longest]) if fully_activated or best > np.float32(0.9) else ranked[: int(leads)]
    assert unmasked(block, strategy="eb", gamma=gamma, unmask_first_masked=leads) == expected


def test_the_excluded_entropy_is_the_largest_of_the_prefix() -> None:
    """Ranked by probability, an uncertain position comes last. Its entropy does not count for those before it."""
    block = random_block(np.random.default_rng(2), size=3)
    entropies = np.float32([0.3, 0.3, 5.0])
    candidates = replace(block.candidates, confidences=np.float32([0.9, 0.8, 0.1]), entropies=entropies)
    block = replace(block, masked=np.ones(3, bool), candidates=candidates)
    assert unmasked(block, strategy="eb", gamma=0.25, confidence="probability") == [0]
    assert unmasked(block, strategy="eb", gamma=0.35, confidence="probability") == [0, 1]


@settings(deadline=None)
@given(seeds, st.booleans(), st.sampled_from([0.2, 0.5, 1.0, 2.5]), leading)
def test_factor(seed: int, fully_activated: bool, factor: float, leads: bool) -> None:
    block = replace(random_block(np.random.default_rng(seed), fully_activated=fully_activated), leads=leads)
    p = block.candidates.probabilities
    ranked = order_of(block, p, leads=leads)
    count = max((n for n in range(1, len(ranked) + 1) if (n + 1) * (1 - float(p[ranked[n - 1]])) < factor), default=0)
    expected = ranked[: max(count, 1 if fully_activated or leads else 0)]
    assert unmasked(block, strategy="factor", factor=factor, unmask_first_masked=leads) == sorted(expected)


@settings(deadline=None)
@given(seeds, st.integers(1, 5), leading)
def test_top_n(seed: int, count: int, leads: bool) -> None:
    block = replace(random_block(np.random.default_rng(seed)), leads=leads)
    expected = sorted(order_of(block, leads=leads)[:count])
    assert unmasked(block, strategy="top_n", tokens_per_step=count, unmask_first_masked=leads) == expected


@settings(deadline=None)
@given(seeds, st.booleans())
def test_local_leap(seed: int, fully_activated: bool) -> None:
    block = random_block(np.random.default_rng(seed), fully_activated=fully_activated)
    p, where = block.candidates.probabilities, block.positions
    free = np.flatnonzero(block.masked).tolist()
    anchors = [i for i in free if p[i] >= np.float32(0.9)]
    near = [i for i in free if p[i] >= 0.75 and any(abs(int(where[i] - where[a])) <= 4 for a in anchors)]
    expected = sorted({*anchors, *near}) or (order_of(block)[:1] if fully_activated else [])
    assert unmasked(block, strategy="local_leap") == expected


@pytest.mark.parametrize("strategy", ["eb", "factor", "top_n", "local_leap"])
def test_a_block_without_masked_positions_unmasks_nothing(strategy: str) -> None:
    block = random_block(np.random.default_rng(3), size=4)
    assert unmasked(replace(block, masked=np.zeros(4, bool)), strategy=strategy) == []
