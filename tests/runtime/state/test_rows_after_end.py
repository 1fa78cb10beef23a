"""Rows behind an unmasked end of text leave the branch and its windows."""

from pathlib import Path

import numpy as np
from tests.cli.command import PROMPT
from tests.params import params_of

from lopa.runtime.decoder import Decoder
from lopa.runtime.decoding.step import Step
from lopa.runtime.requests.result import DoneEvent
from lopa.runtime.state.branch import Block, BlockState, Branch, without_rows_after_end
from lopa.runtime.state.layout import Layout

EOS = 0


def branch_of(tokens: list[int], unmasked: list[int]) -> Branch:
    """Return a branch with a prompt of 2, one of them an end of text, and blocks of 3."""
    blocks = [Block(0, 2, 0, BlockState.IN_CACHE, True)]
    blocks += [
        Block(start, start + 3, unmasked[start : start + 3].count(0), BlockState.ACTIVE, True)
        for start in range(2, len(tokens), 3)
    ]
    return Branch(np.array(tokens), np.array(unmasked, bool), tuple(blocks), True, None, Layout(2, 2, 3, 20))


def test_everything_behind_the_first_unmasked_end_is_dropped() -> None:
    cut = without_rows_after_end(branch_of([5, 0, 7, 2, 0, 0, 2, 2], [1, 1, 1, 0, 1, 1, 0, 0]), (EOS,))
    assert cut.tokens.tolist() == [5, 0, 7, 2, 0]
    assert cut.unmasked.tolist() == [True, True, True, False, True]
    assert [(block.start, block.end) for block in cut.blocks] == [(0, 2), (2, 5)]
    inside = without_rows_after_end(branch_of([5, 0, 0, 2, 2], [1, 1, 1, 0, 0]), (EOS,))
    assert [(block.start, block.end) for block in inside.blocks] == [(0, 2), (2, 3)]


def test_an_end_in_the_prompt_or_masked_drops_nothing() -> None:
    for tokens, unmasked in (([5, 0, 7, 2, 8], [1, 1, 1, 0, 1]), ([5, 0, 7, 0, 8], [1, 1, 1, 0, 1])):
        branch = branch_of(tokens, unmasked)
        assert without_rows_after_end(branch, (EOS,)) is branch


def test_windows_end_at_the_end_of_text_unless_rows_are_kept(tiny_bundle: Path) -> None:
    eos_seen = {}
    with Decoder.open(tiny_bundle, threads=1) as decoder:
        for drop in (True, False):
            steps: list[Step] = []
            config = decoder.config(branches=3, drop_after_eos=drop)
            *_, last = decoder.stream(PROMPT, config, on_step=steps.append)
            assert isinstance(last, DoneEvent)
            assert last.result.stop_reason == "eos"
            assert last.result.generated_positions % 32 == 0
            behind = [
                int(len(branch.tokens) - 1 - np.argmax((branch.tokens == EOS) & branch.unmasked))
                for step in steps
                for branch in step.branches
                if branch.lookahead is None and ((branch.tokens == EOS) & branch.unmasked).any()
            ]
            eos_seen[drop] = behind
        reference = decoder.config(branches=3, reference=True)
        assert not params_of(reference).drop_after_eos
    assert set(eos_seen[True]) <= {0}
    assert max(eos_seen[False]) > 0
