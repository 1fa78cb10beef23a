"""Positions of blocks: behind the prompt, or counted from position 0."""

from typing import Any

import numpy as np
import pytest
from tests.params import params_of

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.layout import Layout, layout_of_prompt, max_rows


def reference_plan(**options: Any) -> DecodingParams:
    return params_of(GenerationConfig(reference=True, **options))


def lengths(layout: Layout) -> list[int]:
    found, start = [], layout.first
    while (end := layout.end_of_block(start)) > start:
        found.append(end - start)
        start = end
    return found


def test_only_the_published_loop_drops_the_last_short_block() -> None:
    assert lengths(layout_of_prompt(7, params_of(max_new_tokens=40))) == [32, 8]
    assert lengths(layout_of_prompt(7, reference_plan(max_new_tokens=40))) == [32]
    assert lengths(layout_of_prompt(7, params_of(max_new_tokens=64))) == [32, 32]
    assert lengths(layout_of_prompt(7, reference_plan(max_new_tokens=31))) == []


@pytest.mark.parametrize(
    ("prompt", "shift", "reference", "first", "end"),
    [
        (5, 0, False, 4, 15),
        (5, 0, True, 4, 16),  # SDAR: to the end of a block
        (8, 0, True, 8, 20),
        (3, 1, False, 0, 13),
        (5, 1, True, 4, 13),  # Fast-dLLM v2: 10 // 4 blocks from 4 on, and the token that the last one predicts
        (8, 1, True, 8, 17),
    ],
)
def test_blocks_counted_from_position_0(prompt: int, shift: int, reference: bool, first: int, end: int) -> None:
    params = params_of(alignment="absolute", strategy="threshold", block_size=4, max_new_tokens=10, reference=reference)
    layout = layout_of_prompt(prompt, params, shift)
    assert (layout.first, layout.end, layout.hands_over, layout.unseen) == (first, end, shift == 1, 0)
    assert layout.block_numbers(np.arange(9)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2]


def test_blocks_behind_the_prompt_are_numbered_from_it() -> None:
    layout = layout_of_prompt(3, params_of(block_size=2, max_new_tokens=6))
    assert layout.block_numbers(np.arange(8)).tolist() == [0, 0, 0, 1, 1, 2, 2, 3]


def test_only_the_published_code_skips_a_prompt_of_one_block() -> None:
    params = reference_plan(alignment="absolute", strategy="threshold", block_size=4, max_new_tokens=8)
    assert [layout_of_prompt(prompt, params, 1).unseen for prompt in (3, 4, 8)] == [0, 4, 0]
    assert layout_of_prompt(4, params, 0).unseen == 0
    assert layout_of_prompt(4, params_of(alignment="absolute", block_size=4), 1).unseen == 0


def test_max_rows_of_a_decode() -> None:
    assert max_rows(10, params_of(max_new_tokens=40)) == (42, 40)
    assert max_rows(1, params_of(max_new_tokens=40)) == (40, 40)
    assert max_rows(10, params_of(max_new_tokens=40, strategy="threshold", cache="none")) == (50, 40)
    absolute = params_of(max_new_tokens=40, alignment="absolute", block_size=16)
    assert max_rows(10, absolute) == (56, 56)
    sliding = {"alignment": "sliding", "attention": "causal", "block_size": 16}
    assert max_rows(10, params_of(max_new_tokens=40, **sliding)) == (32, 16)
    assert max_rows(30, params_of(max_new_tokens=40, **sliding)) == (46, 16)
    assert max_rows(1, params_of(max_new_tokens=20, **sliding)) == (20, 16)
    assert max_rows(1, params_of(max_new_tokens=9, **sliding)) == (10, 9)
    assert max_rows(10, params_of(max_new_tokens=40, remask_threshold=0.5)) == (80, 40)
    assert max_rows(90, params_of(max_new_tokens=40, remask_threshold=0.5)) == (122, 40)
    wino = params_of(max_new_tokens=40, strategy="wino", cache="none")
    assert max_rows(10, wino) == (82, 40)
