"""Windows, fills, competition and branching of one round, held against the specification written out plainly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.runtime.algorithm.competition import branch_confidence, winner_of
from lopa.runtime.algorithm.filling import filled, fills_from_candidates
from lopa.runtime.algorithm.spawning import branches_from_winner, lookaheads_from_candidates

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.branch import (
    Block,
    BlockState,
    Branch,
    Lookahead,
    branch_from_prompt,
    decided_length,
    nothing_left,
    prepared,
    prompt_block,
)
from lopa.runtime.state.layout import Layout, layout_of_prompt
from lopa.runtime.state.windows import windows_from_branches
from lopa.runtime.strategy.views import Candidates

MASK, EOS = 2, 0
PROMPT = 5


def branch_with(decided: list[bool], block_size: int, complete: list[bool], *, cached: bool = True) -> Branch:
    """Prompt of 5 and active blocks over `decided`; decided positions hold 100 + position."""
    flags = np.array([True] * PROMPT + decided)
    tokens = np.where(flags, 100 + np.arange(len(flags)), MASK)
    state = BlockState.IN_CACHE if cached else BlockState.TO_CACHE
    blocks = [Block(0, PROMPT, 0, state, True)]
    for number, start in enumerate(range(PROMPT, len(flags), block_size)):
        end = start + block_size
        masks = int((~flags[start:end]).sum())
        blocks.append(Block(start, end, masks, BlockState.ACTIVE, complete[number]))
    return Branch(tokens, flags, tuple(blocks), ended=False, lookahead=None, layout=layout_of(block_size))


def layout_of(block_size: int, positions: int = 96) -> Layout:
    return Layout(PROMPT, PROMPT, block_size, PROMPT + positions)


rounds = st.tuples(
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)


@given(rounds)
def test_fills_are_those_of_section_5(example: tuple[list[bool], list[bool], int]) -> None:
    decided, complete, seed = example
    branch = branch_with(decided, 4, complete)
    undecided = np.flatnonzero(~branch.decided)
    random = np.random.default_rng(seed)
    probability = random.random(len(undecided)).astype(np.float32)
    confidence = random.integers(0, 4, len(undecided)).astype(np.float32)  # with ties
    tokens = random.integers(10, 20, len(undecided))
    config = GenerationConfig.reference(skip_threshold=0.8)
    fills = fills_from_candidates(branch, undecided, Candidates(tokens, probability, confidence), config)

    expected = []
    for number in range(3):
        inside = [i for i, p in enumerate(undecided) if 5 + 4 * number <= p < 9 + 4 * number]
        high = [i for i in inside if probability[i] > np.float32(0.8)]
        if not high and inside and complete[number]:
            high = [max(inside, key=lambda i: (confidence[i], -i))]
        expected += high
    assert fills.positions.tolist() == [undecided[i] for i in expected]
    assert fills.tokens.tolist() == [tokens[i] for i in expected]
    after = filled(branch, fills, mask_token=MASK, ends=(13,))
    assert after.ended == (13 in fills.tokens)
    assert after.tokens[fills.positions].tolist() == fills.tokens.tolist()
    assert int(after.decided.sum()) == int(branch.decided.sum()) + len(expected)


def test_a_position_filled_with_the_mask_token_stays_undecided() -> None:
    branch = branch_with([False] * 4, 4, [True])
    candidates = Candidates(np.array([MASK, 9, 9, 9]), np.array([0.99, 0, 0, 0], np.float32), np.zeros(4, np.float32))
    fills = fills_from_candidates(branch, np.arange(5, 9), candidates, GenerationConfig.reference())
    assert fills.positions.tolist() == [5]
    assert not filled(branch, fills, mask_token=MASK, ends=(EOS,)).decided[5]


def test_vanilla_fills_one_position_however_sure_it_is() -> None:
    branch = branch_with([False] * 4, 4, [True])
    candidates = Candidates(
        np.arange(10, 14), np.full(4, 1.0, np.float32), np.array([-0.1, -0.2, -0.05, -0.3], np.float32)
    )
    fills = fills_from_candidates(branch, np.arange(5, 9), candidates, GenerationConfig(strategy="vanilla"))
    assert fills.positions.tolist() == [7]


@given(
    confidences=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    count=st.integers(0, 8),
)
def test_lookaheads_are_the_most_confident_and_ties_go_to_the_first_position(
    confidences: list[int], count: int
) -> None:
    size = len(confidences)
    positions = np.arange(size) * 3
    candidates = Candidates(np.arange(size) + 50, np.full(size, 0.5, np.float32), np.array(confidences, np.float32))
    found = lookaheads_from_candidates(positions, candidates, count)
    order = sorted(range(size), key=lambda i: (-confidences[i], i))[:count]
    assert [each.position for each in found] == [3 * i for i in order]
    assert [each.token for each in found] == [50 + i for i in order]
    assert [each.rank for each in found] == list(range(len(order)))


def test_branches_copy_the_winner_and_share_nothing() -> None:
    winner = branch_with([True, True, True, False], 4, [True])
    look = (Lookahead(0, 8, 33, -0.5),)
    ahead, anchor = branches_from_winner(winner, look, GenerationConfig(), mask_token=MASK, ends=(33,))
    assert (ahead.tokens[8], anchor.tokens[8], winner.tokens[8]) == (33, MASK, MASK)
    assert (ahead.decided[8], anchor.unmasked[8]) == (True, False)
    assert (ahead.ended, anchor.ended) == (True, False)
    assert (ahead.lookahead, anchor.lookahead) == (look[0], None)
    # The lookahead token alone completed the block: it does not fall due in this round (section 6 K).
    assert [branch.blocks[1].state for branch in (ahead, anchor)] == [BlockState.ACTIVE] * 2
    assert [branch.blocks[1].masks for branch in (ahead, anchor)] == [0, 1]


def test_only_the_published_loop_verifies_the_anchor_twice() -> None:
    winner = branch_with([True] * 4, 4, [True])

    def spawned(config: GenerationConfig) -> int:
        return len(branches_from_winner(winner, (), config, mask_token=MASK, ends=(EOS,)))

    assert spawned(GenerationConfig.reference(branches=5)) == 2
    assert spawned(GenerationConfig(branches=5)) == 1
    assert spawned(GenerationConfig.reference(strategy="d2f")) == 1


def test_competition() -> None:
    assert branch_confidence(np.array([-1.0, -3.0], np.float32)) == -2.0
    assert branch_confidence(np.zeros(0, np.float32)) == 1.0
    assert winner_of([-2.0, -1.0, -1.0]) == 1


def test_blocks_open_one_a_round_until_the_last_or_an_end_of_text() -> None:
    config = GenerationConfig(block_size=4, max_new_tokens=10)
    branch = prepared(branch_from_prompt(np.arange(10, 10 + PROMPT), layout_of_prompt(PROMPT, config)), config, MASK)
    assert [block.end - block.start for block in branch.blocks] == [5, 4]
    assert branch.tokens[PROMPT:].tolist() == [MASK] * 4
    assert len(prepared(branch, config, MASK).blocks) == 2, "the last block has not reached the threshold"
    layout = branch.layout
    opened = prepared(replace(branch_with([True, False, False, False], 4, [True]), layout=layout), config, MASK)
    assert len(opened.blocks) == 3
    third = prepared(replace(branch_with([True] * 8, 4, [True, True]), layout=layout), config, MASK)
    assert third.blocks[-1].end - third.blocks[-1].start == 2
    assert not third.decided[-2:].any()
    ended = replace(branch_with([True] * 8, 4, [True, True]), ended=True, layout=layout)
    assert len(prepared(ended, config, MASK).blocks) == 3


def test_decided_text_ends_at_the_first_undecided_position() -> None:
    assert decided_length(branch_with([True, True, False, True], 4, [True])) == 2
    assert decided_length(branch_with([True] * 4, 4, [True])) == 4
    assert decided_length(branch_with([False] * 4, 4, [True])) == 0


def test_a_mask_token_in_the_prompt_makes_only_the_published_loop_cache_once_more() -> None:
    prompt = np.array([10, MASK, 11])
    blocks = (prompt_block(3), Block(3, 4, 0, BlockState.TO_CACHE, True))
    branch = Branch(np.array([10, MASK, 11, 12]), np.ones(4, bool), blocks, False, None, Layout(3, 3, 1, 4))
    config = GenerationConfig.reference(block_size=1, max_new_tokens=1)
    assert not nothing_left(branch, config, MASK)
    assert nothing_left(branch, GenerationConfig(block_size=1, max_new_tokens=1), MASK)
    # Loops that keep rows of the whole answer do not: there would be no block for which to keep them.
    assert nothing_left(replace(branch, layout=replace(branch.layout, whole=True)), config, MASK)
    assert len(branch_from_prompt(prompt, branch.layout).blocks) == 1


@pytest.mark.parametrize("window", ["full", "block_causal"])
@pytest.mark.parametrize("shift", [0, 1])
@given(example=rounds, cached=st.booleans())
@settings(max_examples=30)
def test_windows_are_those_of_section_2(
    window: str, shift: int, example: tuple[list[bool], list[bool], int], cached: bool
) -> None:
    decided, complete, _ = example
    short = branch_with([*decided[:7], False], 4, complete, cached=cached)
    long = branch_with([*decided[:7], False, *([False] * 4)], 4, complete, cached=cached)
    branches = (long, short)
    config = GenerationConfig.reference(window=window)
    windows = windows_from_branches(branches, config, prediction_shift=shift, pad_token=9)

    start = PROMPT if cached else 0
    assert (windows.prefix, windows.commit) == (start, 0 if cached else PROMPT)
    assert windows.lengths == (17 - start, 13 - start)
    for row, branch in enumerate(branches):
        length = windows.lengths[row]
        assert windows.positions[row].tolist() == list(range(start, 17))
        assert windows.input_ids[row].tolist() == branch.tokens[start:].tolist() + [9] * (17 - start - length)

        def block_of(position: int) -> int:
            return 0 if position < PROMPT else 1 + (position - PROMPT) // 4

        for query in range(17 - start):
            for key in range(17 - start):
                inside = query < length and key < length
                allowed = inside and (window == "full" or block_of(key + start) <= block_of(query + start))
                assert windows.mask[row, query, key] == (allowed or (query >= length and query == key))

        undecided = [p for p in range(len(branch.tokens)) if not branch.decided[p]]
        assert windows.asked[row].tolist() == undecided
        for column, position in enumerate(undecided, start=windows.kept):
            assert windows.wanted[row, column] == position
            assert windows.logits_index[row, column] == max(position - shift - start, 0)
        if windows.kept:
            assert windows.logits_index[row, 0] == windows.commit - 1
    assert windows.kept == (1 if shift and not cached else 0)
