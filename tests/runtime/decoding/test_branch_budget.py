"""branches="auto": the estimate, and whole decodes with artificial cost tables."""

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.lone_decode import LoneDecode
from tests.params import branch_of, context_of, params_of

from lopa import tiny
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.costs import COSTS_SCHEMA, CostTable, DeviceCosts, ForwardCost, costs_name
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CONTRACT_VERSION, tiles
from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.branch_budget import BranchBudget, tokens_gained
from lopa.runtime.decoding.extension import Extension
from lopa.runtime.decoding.round import RoundOutcome, UnmaskedTokens
from lopa.runtime.decoding.step import Step
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.branch import Branch, Lookahead
from lopa.runtime.state.pipeline import next_anchor
from lopa.runtime.strategy import Candidates


def costs_with(digest: str, *, first: float, each: float, host_each: float = 0.0) -> DeviceCosts:
    """Return costs where a forward of b branches takes first + b x each, and the host adds host_each per branch."""
    return DeviceCosts(
        schema=COSTS_SCHEMA,
        contract=CONTRACT_VERSION,
        device="cpu",
        machine="test",
        threads=1,
        weights_sha256=digest,
        measured="2026-11-21",
        host_seconds=0.0,
        host_seconds_a_branch=host_each,
        points=[ForwardCost(branches=b, window=32, prefix=64, seconds=first + b * each) for b in (1, 8)]
        + [ForwardCost(branches=b, window=256, prefix=64, seconds=first + b * each) for b in (1, 8)],
    )


def budget_with(*, first: float, each: float) -> BranchBudget:
    return BranchBudget(CostTable(costs_with("", first=first, each=each)))


def test_free_branches_are_all_used_and_expensive_ones_are_not() -> None:
    assert budget_with(first=1.0, each=0.0).branches(masked=100, window=64, prefix=64) == 8
    assert budget_with(first=0.0, each=1.0).branches(masked=100, window=64, prefix=64) == 1
    between = budget_with(first=1.0, each=0.3).branches(masked=100, window=64, prefix=64)
    assert 1 < between < 8
    host = CostTable(costs_with("", first=1.0, each=0.0, host_each=0.3))
    assert BranchBudget(host).branches(masked=100, window=64, prefix=64) == between


def test_no_more_branches_than_masked_positions() -> None:
    budget = budget_with(first=1.0, each=0.0)
    assert budget.branches(masked=2, window=64, prefix=64) <= 3
    assert budget.branches(masked=1, window=64, prefix=64) == 1


@pytest.mark.parametrize(
    ("left", "more_blocks", "lookaheads"), [(0, False, 0), (1, False, 1), (1, True, 0), (2, False, 0)]
)
def test_the_last_position_gets_a_lookahead_at_any_cost(left: int, more_blocks: bool, lookaheads: int) -> None:
    """The last position needs no further forward, unless another block will open."""
    context = context_of(mask_token=2, prediction_shift=1, block_size=4, max_new_tokens=8 if more_blocks else 4)
    branch = branch_of(np.arange(5, 9), context, cached=True)
    unmasked = branch.unmasked.copy()
    unmasked[4 : 8 - left] = True
    anchor = next_anchor(dataclasses.replace(branch, unmasked=unmasked))
    dear = budget_with(first=0.0, each=1.0)
    assert dear.lookaheads((0.1,), (4 - left,), anchor, context) == lookaheads
    assert (dear._tokens[0], dear._rounds[0]) == (4 - left, 1)


def test_the_winner_of_fewer_branches_is_found_among_them() -> None:
    """Only the first lookahead and the anchor compete with two branches."""
    budget = budget_with(first=1.0, each=0.0)
    budget.observe([-0.5, -0.1, -0.3], [7, 11, 3])
    assert budget._tokens[:4] == [3, 3, 11, 0]
    assert budget._rounds[:4] == [1, 1, 1, 0]


def outcome_of(branch: Branch, tokens: list[int], remasked: list[int]) -> RoundOutcome:
    unmasked = UnmaskedTokens(np.ones(len(tokens), bool), np.arange(len(tokens)), np.array(tokens))
    none = np.empty(0, np.int64)
    proposed = Candidates(none, none.astype(np.float32), none.astype(np.float32))
    return RoundOutcome(branch, unmasked, none, proposed, np.array(remasked, np.int64))


def test_tokens_gained_are_unmasked_and_lookahead_tokens_without_ends_of_text() -> None:
    anchor = branch_of(np.arange(5), context_of(), blocks=0)
    ahead = dataclasses.replace(anchor, lookahead=Lookahead(0, 9, 44, -0.1))
    ended = dataclasses.replace(anchor, lookahead=Lookahead(0, 9, 0, -0.1))
    outcome = outcome_of(anchor, [5, 0, 6], remasked=[])
    assert tokens_gained(anchor, outcome, (0,)) == 2
    assert tokens_gained(ahead, outcome, (0,)) == 3
    assert tokens_gained(ahead, outcome, ()) == 4
    assert tokens_gained(ended, outcome, (0,)) == 2
    assert tokens_gained(ahead, outcome_of(anchor, [5, 0, 6], remasked=[7, 8]), (0,)) == 1


@pytest.mark.parametrize(("first", "each", "max_branches"), [(1.0, 0.0, 8), (0.0, 1.0, 1)])
def test_complete_decodes_follow_the_table(copy: Path, first: float, each: float, max_branches: int) -> None:
    digest = Bundle.open(copy).manifest.weights_digest
    (copy / costs_name("cpu")).write_bytes(json_from_record(costs_with(digest, first=first, each=each)))
    with tiny.EVAL.open(encoding="utf-8") as lines:
        prompts = [json.loads(line)["prompt"] for line in itertools.islice(lines, 4)]
    with Decoder.open(copy, threads=1) as decoder:
        auto = decoder.config(branches="auto")
        for prompt in prompts:
            runs: list[list[Step]] = [[], []]
            results = [list(decoder.stream(prompt, auto, on_step=run.append))[-1] for run in runs]
            counts = [len(step.branches) for step in runs[0]]
            assert max(counts) == max_branches
            assert counts == [len(step.branches) for step in runs[1]], "not reproducible"
            assert results[0].result.token_ids == results[1].result.token_ids


REMASKING: list[dict[str, Any]] = [
    {"strategy": "lopa", "remask_threshold": 0.9},
    {"strategy": "eb", "gamma": 2.0, "remask_threshold": 0.7},
    {"strategy": "lopa"},
]


@pytest.mark.parametrize("options", REMASKING, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("each", [0.0, 9.0])
def test_the_expected_rows_match_the_next_round(
    decoder: Decoder, prompt: tuple[int, ...], options: dict[str, Any], each: float
) -> None:
    """Shadow rows are included. The observed yields equal the yields of the rounds, without remasked tokens."""
    budget, calls = budget_with(first=1.0, each=each), list[tuple[int, int, int]]()
    table = budget._table

    def seconds(branches: int, window: int, prefix: int) -> float:
        calls.append((branches, window, prefix))
        return table.seconds(branches, window, prefix)

    budget._table = cast(CostTable, SimpleNamespace(seconds=seconds, host_seconds=table.host_seconds))
    config = decoder.config(
        branches="auto", block_size=16, skip_threshold=0.6, max_new_tokens=40, stop_at_eos=False, **options
    )
    asked = Extension(candidates=budget.candidates)
    decoding = LoneDecode(decoder.session, np.array(prompt), params_of(config), decoder.bundle.manifest, asked)
    shadows = back = 0
    while decoding.stop_reason is None:
        expected = [(window, prefix) for branches, window, prefix in calls if branches == 1]
        calls.clear()
        step = decoding.step()
        if expected:
            assert expected == [(step.rows.branch_lengths[-1], tiles(step.rows.prefix))]
        shadows, back = shadows + len(step.rows.remaskable), back + len(step.remasked)
    decoding.release()
    assert (shadows > 0) == (back > 0) == ("remask_threshold" in options)
    if each == 9.0:  # only the anchor, except that one lookahead may unmask the last position
        assert budget._tokens[0] == 40 - (decoding.anchor.lookahead is not None)


def test_auto_needs_a_table_and_excludes_reference_mode(tiny_bundle: Path) -> None:
    with Decoder.open(tiny_bundle, threads=1) as decoder, pytest.raises(BadInputError, match="does not exist"):
        decoder.stream("a prompt", decoder.config(branches="auto"))
    with pytest.raises(BadInputError, match="reference"):
        params_of(reference=True, branches="auto")
    with pytest.raises(BadInputError, match="d2f"):
        params_of(strategy="d2f", branches="auto")
    with pytest.raises(BadInputError, match="branches 'many'"):
        GenerationConfig(branches="many")  # type: ignore[arg-type]
