"""Strategies with their own branch confidence and lookaheads: views, winners, next branches, and the page's example."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.strategy.agreement import params_with, steps_of, strategy_of_example

from lopa.runtime import Decoder
from lopa.runtime.contract import Int64
from lopa.runtime.decoding.step import Step
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import STRATEGIES, BranchView, Strategy, installed, register_strategy
from lopa.runtime.strategy.strategy import mean_confidence, most_confident

LOPA = STRATEGIES["lopa"]
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "choose-a-strategy.md"
OPTIONS = {"branches": 4, "max_new_tokens": 48, "block_size": 8}


@pytest.fixture(autouse=True)
def _built_in_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test with the built-in strategies only."""
    monkeypatch.setattr(installed, "_registered", {})
    monkeypatch.setattr(installed, "_entry_points", dict)


def steps_with(decoder: Decoder, prompt: tuple[int, ...], strategy: Strategy) -> list[Step]:
    if strategy.name not in STRATEGIES:
        register_strategy(strategy)
    return list(steps_of(decoder, prompt, params_with(strategy, {}, **OPTIONS)))


def test_the_example_of_the_page(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    """Each branch has the confidence of its least confident position, and lookaheads are 4 apart."""
    [code] = [each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "far_apart" in each]
    code = code.replace('"out/bundle"', repr(str(decoder.bundle.path)))
    values: dict[str, Any] = {}
    exec(code, values)
    values["decoder"].close()
    assert values["result"].text
    steps = steps_with(decoder, prompt, installed.strategy_from_name("cautious"))
    usual = steps_with(decoder, prompt, LOPA)
    assert [step.winner for step in steps] != [step.winner for step in usual]
    counts = set()
    for step in steps:
        expected = [float(each.confidences.min()) if len(each.confidences) else 1.0 for each in step.candidates]
        assert list(step.confidences) == expected
        assert all(type(each) is float for each in step.confidences)
        assert step.winner == int(np.argmax(expected))
        positions = [each.position for each in step.lookaheads]
        assert all(abs(one - other) >= 4 for one in positions for other in positions if one != other)
        assert [each.rank for each in step.lookaheads] == list(range(len(positions)))
        counts.add(len(positions))
    assert max(counts) == 3
    assert min(np.diff(sorted(each.position for each in step.lookaheads)).min(initial=4) for step in usual) < 4


def test_the_careful_example_contains_lopa_and_the_least_confident_position(
    decoder: Decoder, prompt: tuple[int, ...]
) -> None:
    careful = strategy_of_example("careful")
    register_strategy(careful)
    usual, lopa = steps_with(decoder, prompt, LOPA), {"share": 1.0, "distance": 1}
    steps = list(steps_of(decoder, prompt, params_with(careful, lopa, **OPTIONS)))
    assert [step.winner for step in steps] == [step.winner for step in usual]
    assert [step.unmasked.tokens.tolist() for step in steps] == [step.unmasked.tokens.tolist() for step in usual]
    for step in steps_of(decoder, prompt, params_with(careful, {"share": 1e-6, "distance": 4}, **OPTIONS)):
        assert list(step.confidences) == [min(each.confidences, default=1.0) for each in step.candidates]
        assert np.diff(sorted(each.position for each in step.lookaheads)).min(initial=4) >= 4


def test_views_show_the_branch(decoder: Decoder, prompt: tuple[int, ...]) -> None:
    judged: list[BranchView] = []
    looked: list[tuple[BranchView, int]] = []

    def confidence(branch: BranchView, params: DecodingParams) -> float:
        judged.append(branch)
        return mean_confidence(branch, params)

    def lookaheads(branch: BranchView, count: int, params: DecodingParams) -> Int64:
        looked.append((branch, count))
        return most_confident(branch, count, params)

    own = dataclasses.replace(LOPA, name="noted", branch_confidence=confidence, lookaheads=lookaheads)
    register_strategy(own)
    params = params_with(own, {}, **OPTIONS)
    for step in steps_of(decoder, prompt, params):
        asked = [number for number, each in enumerate(step.rows.sampled) if len(each)]
        assert len(judged) == len(asked)
        for number, view in zip(asked, judged, strict=True):
            branch = step.branches[number]
            np.testing.assert_array_equal(view.positions, step.rows.sampled[number])
            np.testing.assert_equal(vars(view.candidates), vars(step.candidates[number]))
            assert view.blocks == tuple((block.start, block.end) for block in branch.active)
            assert view.lookahead == (None if branch.lookahead is None else branch.lookahead.confidence)
        if looked:
            [(view, count)] = looked
            assert count == 3
            assert len(view.positions)
            assert [each.position for each in step.lookaheads] == [
                int(view.positions[i]) for i in most_confident(view, count, params)
            ]
            winner = step.branches[step.winner]
            assert view.lookahead == (None if winner.lookahead is None else winner.lookahead.confidence)
            assert not set(view.positions.tolist()) & set(step.unmasked.positions.tolist())
        else:
            assert not step.lookaheads
        judged.clear()
        looked.clear()
