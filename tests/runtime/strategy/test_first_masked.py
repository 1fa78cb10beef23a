"""Unmasking the answer's first masked position in every step: as an option, and with every grammar."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import params_of
from tests.runtime.requests.batch_mates import decoded
from tests.runtime.strategy.blocks import random_block, unmasked_of

from lopa.runtime import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.strategy import STRATEGIES, BlockView

seeds = st.integers(0, 2**32 - 1)
WITH_OPTION = [name for name, strategy in STRATEGIES.items() if strategy.unmasks_first]
WITHOUT_OPTION = [name for name, strategy in STRATEGIES.items() if not strategy.unmasks_first]
NEVER_REMASKS = [name for name, strategy in STRATEGIES.items() if not (strategy.remask_threshold or strategy.canvas)]


def unmasked(block: BlockView, **options: Any) -> list[int]:
    return unmasked_of(block, params_of(**options))


@settings(deadline=None)
@given(seeds, st.booleans(), st.booleans(), st.sampled_from(["lopa", "d2f", "threshold", "credit", "local_leap"]))
def test_the_first_is_unmasked_together_with_certain_positions(
    seed: int, fully_activated: bool, leads: bool, strategy: str
) -> None:
    block = replace(random_block(np.random.default_rng(seed), fully_activated=fully_activated), leads=leads)
    first = np.flatnonzero(block.masked)[:1].tolist()
    certain = unmasked(replace(block, fully_activated=False), strategy=strategy)
    expected = sorted({*certain, *first}) if leads else unmasked(block, strategy=strategy)
    assert unmasked(block, strategy=strategy, unmask_first_masked=True) == expected


def first_masked_of(step: Step) -> int:
    return int(np.argmin(np.append(step.branches[-1].unmasked, False)))


@pytest.mark.parametrize("strategy", WITH_OPTION)
def test_every_step_unmasks_the_first(decoder: Decoder, prompt: tuple[int, ...], strategy: str) -> None:
    """This holds even if nothing exceeds the threshold."""
    for more in ({}, {"block_size": 8, "attention": "block_causal"}):
        options = {**more, "strategy": strategy, "skip_threshold": 1.0}
        if STRATEGIES[strategy].looks_ahead:
            options["branches"] = 3
        _, steps = decoded(decoder, prompt, max_new_tokens=40, unmask_first_masked=True, **options)
        assert all(first_masked_of(after) > first_masked_of(before) for before, after in pairwise(steps))
        assert len(steps) <= 41


@pytest.mark.parametrize("strategy", NEVER_REMASKS)
def test_with_a_grammar_every_step_unmasks_the_first(decoder: Decoder, prompt: tuple[int, ...], strategy: str) -> None:
    branches = 3 if STRATEGIES[strategy].looks_ahead else None
    options: dict[str, Any] = {"branches": branches, "max_new_tokens": 40, "regex": "[a-f]{9} (yes|no), [0-9]{3}"}
    _, steps = decoded(decoder, prompt, strategy=strategy, **options)
    assert all(first_masked_of(after) > first_masked_of(before) for before, after in pairwise(steps))


@pytest.mark.parametrize("strategy", WITHOUT_OPTION)
def test_rejected_for_strategies_that_choose_the_next_position(strategy: str) -> None:
    with pytest.raises(BadInputError, match=f"unmask_first_masked True with strategy '{strategy}'"):
        params_of(strategy=strategy, unmask_first_masked=True)
    assert not params_of(strategy=strategy, unmask_first_masked=False).unmask_first_masked


def test_rejected_in_reference_mode() -> None:
    with pytest.raises(BadInputError, match="unmask_first_masked in reference mode"):
        params_of(GenerationConfig(reference=True, unmask_first_masked=True))
