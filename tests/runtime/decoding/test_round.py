"""Scores, unmasking, next branches and windows of a round, compared with a plain version of the specification."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.params import branch_of, context_of, params_of
from tests.runtime.decoding.rounds import scores_of

from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.reference import is_done
from lopa.runtime.decoding.round import RoundOutcome, scores_from_rows, spawn, unmask
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.state.branch import Block, BlockState, Branch, stop_reason, unmasked_length
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.packed_rows import KEPT_ROW, pack_rows
from lopa.runtime.state.pipeline import next_anchor, with_next_block
from lopa.runtime.strategy import Candidates

MASK, EOS = 2, 0
PROMPT = 5


def reference_context(*, ends: tuple[int, ...] = (EOS,), **options: Any) -> Context:
    params = params_of(GenerationConfig(reference=True, **options))
    return context_of(params, mask_token=MASK, ends=ends, prediction_shift=1)


def branch_with(unmasked: list[bool], block_size: int, fully_activated: list[bool], *, cached: bool = True) -> Branch:
    """Return a branch with a prompt of 5 and active blocks over `unmasked`. Unmasked positions hold 100 + position."""
    flags = np.array([True] * PROMPT + unmasked)
    tokens = np.where(flags, 100 + np.arange(len(flags)), MASK)
    state = BlockState.IN_CACHE if cached else BlockState.TO_CACHE
    blocks = [Block(0, PROMPT, 0, state, True)]
    for number, start in enumerate(range(PROMPT, len(flags), block_size)):
        end = start + block_size
        masks = int((~flags[start:end]).sum())
        blocks.append(Block(start, end, masks, BlockState.ACTIVE, fully_activated[number]))
    return Branch(tokens, flags, tuple(blocks), ended=False, lookahead=None, layout=layout_of(block_size))


def layout_of(block_size: int, positions: int = 96) -> Layout:
    return Layout(PROMPT, PROMPT, block_size, PROMPT + positions)


rounds = st.tuples(
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)


@given(rounds)
def test_unmasked_tokens_follow_section_5(example: tuple[list[bool], list[bool], int]) -> None:
    flags, fully_activated, seed = example
    branch = branch_with(flags, 4, fully_activated)
    masked = np.flatnonzero(~branch.unmasked)
    random = np.random.default_rng(seed)
    probability = random.random(len(masked)).astype(np.float32)
    confidence = random.integers(0, 4, len(masked)).astype(np.float32)  # with ties
    tokens = random.integers(10, 20, len(masked))
    context = reference_context(skip_threshold=0.8, ends=(13,))
    outcome = unmask(scores_of(branch, masked, Candidates(tokens, probability, confidence)), 0, context)
    unmasked, after = outcome.unmasked, outcome.branch

    expected = []
    for number in range(3):
        inside = [i for i, p in enumerate(masked) if 5 + 4 * number <= p < 9 + 4 * number]
        high = [i for i in inside if probability[i] > np.float32(0.8)]
        if not high and inside and fully_activated[number]:
            high = [max(inside, key=lambda i: (confidence[i], -i))]
        expected += high
    assert unmasked.positions.tolist() == [masked[i] for i in expected]
    assert unmasked.tokens.tolist() == [tokens[i] for i in expected]
    assert after.ended == (13 in unmasked.tokens)
    assert after.tokens[unmasked.positions].tolist() == unmasked.tokens.tolist()
    assert int(after.unmasked.sum()) == int(branch.unmasked.sum()) + len(expected)
    assert outcome.left.tolist() == [p for i, p in enumerate(masked) if i not in expected]
    assert outcome.proposed.tokens.tolist() == [tokens[i] for i in range(len(masked)) if i not in expected]


def test_a_position_that_gets_the_mask_token_stays_masked() -> None:
    branch = branch_with([False] * 4, 4, [True])
    candidates = Candidates(np.array([MASK, 9, 9, 9]), np.array([0.99, 0, 0, 0], np.float32), np.zeros(4, np.float32))
    outcome = unmask(scores_of(branch, np.arange(5, 9), candidates), 0, reference_context())
    assert outcome.unmasked.positions.tolist() == [5]
    assert not outcome.branch.unmasked[5]


def test_a_position_that_got_the_mask_token_gets_no_lookahead() -> None:
    """It is masked again, but the published loop leaves the positions that a round wrote out of its lookaheads."""
    branch = branch_with([False] * 4, 4, [True])
    candidates = Candidates(np.array([MASK, 7, 8, 9]), np.array([0.99, 0, 0, 0], np.float32), np.zeros(4, np.float32))
    context = reference_context(branches=5)
    outcome = unmask(scores_of(branch, np.arange(5, 9), candidates), 0, context)
    _, found = spawn(next_anchor(outcome.branch), outcome, 4, context)
    assert [each.position for each in found] == [6, 7, 8]


def outcome_with(branch: Branch, positions: list[int], tokens: list[int], confidences: list[float]) -> RoundOutcome:
    """Return the outcome of a round that unmasked nothing and leaves `positions` for lookaheads."""
    places = np.array(positions, np.int64)
    scores = np.array(confidences, np.float32)
    candidates = Candidates(np.array(tokens, np.int64), np.full(len(places), 0.5, np.float32), scores)
    nothing = unmask(scores_of(branch, np.empty(0, np.int64), candidates[:0]), 0, reference_context())
    assert not len(nothing.unmasked)
    return nothing._replace(left=places, proposed=candidates)


@given(
    confidences=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    count=st.integers(0, 8),
)
def test_lookaheads_are_the_most_confident_and_ties_go_to_the_first_position(
    confidences: list[int], count: int
) -> None:
    size = len(confidences)
    branch = branch_with([False] * 36, 36, [True])
    positions = [PROMPT + 3 * i for i in range(size)]
    outcome = outcome_with(branch, positions, [50 + i for i in range(size)], [float(c) for c in confidences])
    _, found = spawn(next_anchor(outcome.branch), outcome, count, reference_context())
    order = sorted(range(size), key=lambda i: (-confidences[i], i))[:count]
    assert [each.position for each in found] == [PROMPT + 3 * i for i in order]
    assert [each.token for each in found] == [50 + i for i in order]
    assert [each.rank for each in found] == list(range(len(order)))


def test_branches_copy_the_winner() -> None:
    winner = branch_with([True, True, True, False], 4, [True])
    outcome = outcome_with(winner, [8], [33], [-0.5])
    (ahead, anchor), lookaheads = spawn(next_anchor(outcome.branch), outcome, 1, reference_context(ends=(33,)))
    assert (ahead.tokens[8], anchor.tokens[8], winner.tokens[8]) == (33, MASK, MASK)
    assert (ahead.unmasked[8], anchor.unmasked[8]) == (True, False)
    assert (ahead.ended, anchor.ended) == (True, False)
    assert ((ahead.lookahead,), anchor.lookahead) == (lookaheads, None)
    # Only the lookahead token completed the block, so it does not become due in this round (section 6 K).
    assert [branch.blocks[1].state for branch in (ahead, anchor)] == [BlockState.ACTIVE] * 2
    assert [branch.blocks[1].masks for branch in (ahead, anchor)] == [0, 1]


def test_outside_the_published_loop_a_branch_with_nothing_masked_continues_alone() -> None:
    """The branch would win the round in any case, and its finished block becomes due at once."""
    winner = replace(branch_with([True, True, True, False], 4, [True]), layout=layout_of(4, positions=4))
    outcome = outcome_with(winner, [8], [33], [-0.5])
    (alone,), lookaheads = spawn(next_anchor(winner), outcome, 1, context_of(mask_token=MASK, ends=(EOS,)))
    assert (alone.lookahead,) == lookaheads
    assert alone.blocks[1].state is BlockState.TO_CACHE


def test_only_the_published_loop_verifies_the_anchor_twice() -> None:
    winner = branch_with([True] * 4, 4, [True])
    outcome = outcome_with(winner, [], [], [])

    def spawned(context: Context) -> int:
        return len(spawn(next_anchor(winner), outcome, context.params.lookaheads, context)[0])

    assert spawned(reference_context(branches=5)) == 2
    assert spawned(context_of(mask_token=MASK, ends=(EOS,), branches=5)) == 1
    assert spawned(reference_context(strategy="d2f")) == 1


def test_the_most_confident_branch_wins_and_a_finished_one_beats_every_other() -> None:
    """Confidence is the mean over the masked positions, ties go to the first branch, and it is 1 if nothing is
    masked."""

    def scored(entropies: list[list[float]]) -> tuple[tuple[float, ...], int]:
        branches = tuple(branch_with([True] * (4 - len(each)) + [False] * len(each), 4, [True]) for each in entropies)
        context = reference_context(confidence="neg_entropy")
        packed = pack_rows(branches, context)
        shape = packed.column_positions.shape
        rows = RowStatistics(
            np.zeros((*shape, 8), np.int64), np.full((*shape, 8), -1.0, np.float32), np.zeros(shape, np.float32)
        )
        for branch, each in enumerate(entropies):
            rows.entropy[packed.sampled_columns(branch)] = each
        scores = scores_from_rows(branches, packed, rows, 1, context)
        return scores.confidences, scores.view.winner

    assert scored([[1.0, 3.0], [0.5, 0.5, 0.5]]) == ((-2.0, -0.5), 1)
    assert scored([[2.0], [1.0], [0.5, 1.5]]) == ((-2.0, -1.0, -1.0), 1)
    assert scored([[0.25], [], [0.125]]) == ((-0.25, 1.0, -0.125), 1)


def test_one_block_opens_per_round_until_the_last_or_an_end_of_text() -> None:
    context = context_of(mask_token=MASK, prediction_shift=1, block_size=4, max_new_tokens=10)
    branch = branch_of(np.arange(10, 10 + PROMPT), context)
    assert [block.end - block.start for block in branch.blocks] == [5, 4]
    assert branch.tokens[PROMPT:].tolist() == [MASK] * 4
    assert len(with_next_block(branch, context).blocks) == 2, "the last block has not reached the threshold"
    layout = branch.layout
    opened = with_next_block(replace(branch_with([True, False, False, False], 4, [True]), layout=layout), context)
    assert len(opened.blocks) == 3
    third = with_next_block(replace(branch_with([True] * 8, 4, [True, True]), layout=layout), context)
    assert third.blocks[-1].end - third.blocks[-1].start == 2
    assert not third.unmasked[-2:].any()
    ended = replace(branch_with([True] * 8, 4, [True, True]), ended=True, layout=layout)
    assert len(with_next_block(ended, context).blocks) == 3


def test_unmasked_text_ends_at_the_first_masked_position() -> None:
    assert unmasked_length(branch_with([True, True, False, True], 4, [True])) == 2
    assert unmasked_length(branch_with([True] * 4, 4, [True])) == 4
    assert unmasked_length(branch_with([False] * 4, 4, [True])) == 0


def test_a_mask_token_in_the_prompt_makes_only_the_published_loop_cache_once_more() -> None:
    prompt = np.array([10, MASK, 11])
    blocks = (Block(0, 3, 0, BlockState.TO_CACHE, True), Block(3, 4, 0, BlockState.TO_CACHE, True))
    branch = Branch(np.array([10, MASK, 11, 12]), np.ones(4, bool), blocks, False, None, Layout(3, 3, 1, 4))
    context = reference_context(block_size=1, max_new_tokens=1)
    assert not is_done(branch, context)
    assert stop_reason(branch, (EOS,)) == "length"
    # Loops that keep the rows of the whole answer do not cache once more, since no block needs these rows.
    whole = replace(branch, layout=replace(branch.layout, whole=True))
    assert is_done(whole, context)
    without_mask = replace(branch, tokens=np.array([10, 10, 11, 12]))
    assert is_done(without_mask, context)
    assert len(branch_of(prompt, context, blocks=0).blocks) == 1


@pytest.mark.parametrize("attention", ["full", "block_causal"])
@pytest.mark.parametrize("shift", [0, 1])
@given(example=rounds, cached=st.booleans())
@settings(max_examples=30)
def test_rows_follow_section_2(
    attention: str, shift: int, example: tuple[list[bool], list[bool], int], cached: bool
) -> None:
    unmasked, fully_activated, _ = example
    short = branch_with([*unmasked[:7], False], 4, fully_activated, cached=cached)
    long = branch_with([*unmasked[:7], False, *([False] * 4)], 4, fully_activated, cached=cached)
    branches = (long, short)
    context = replace(reference_context(attention=attention), prediction_shift=shift)
    packed = pack_rows(branches, context)

    start = PROMPT if cached else 0
    assert (packed.prefix, packed.commit) == (start, 0 if cached else PROMPT)
    assert packed.lengths == packed.branch_lengths == (17 - start, 13 - start)
    ends = np.cumsum(packed.lengths)
    first_column = 0
    for number, branch in enumerate(branches):
        length = packed.lengths[number]
        first = int(ends[number]) - length
        assert packed.positions[first:][:length].tolist() == list(range(start, start + length))
        assert packed.input_ids[first:][:length].tolist() == branch.tokens[start:].tolist()

        def block_of(position: int) -> int:
            return 0 if position < PROMPT else 1 + (position - PROMPT) // 4

        for query in range(length):
            for key in range(length):
                allowed = attention == "full" or block_of(key + start) <= block_of(query + start)
                assert packed.masks[number][query, key] == allowed

        masked = [p for p in range(len(branch.tokens)) if not branch.unmasked[p]]
        assert packed.sampled[number].tolist() == masked
        columns = packed.sampled_columns(number)
        assert (columns.start, columns.stop) == (
            first_column + packed.kept_columns,
            first_column + packed.kept_columns + len(masked),
        )
        assert packed.column_positions[columns].tolist() == masked
        assert packed.column_rows[columns].tolist() == [
            first + position - shift - start if position - shift >= start else KEPT_ROW for position in masked
        ]
        if packed.kept_columns:
            assert packed.first_columns[number] == first_column
            assert packed.column_rows[first_column] == first + packed.commit - 1
            assert packed.column_positions[first_column] == PROMPT
        first_column = columns.stop
    assert first_column == len(packed.column_positions)
    assert packed.kept_columns == (1 if shift and not cached else 0)
