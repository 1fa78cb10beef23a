"""What a branch decides by the answers to it: what may stand, what the rule takes of it, where the text ends. Pure."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from lopa.runtime.algorithm.candidates import candidates_from_rows
from lopa.runtime.algorithm.filling import (
    Fills,
    chosen_of_candidates,
    filled,
    fills_of_chosen,
    handed_over,
    without_rows_after_end,
)
from lopa.runtime.algorithm.spawning import branches_from_winner
from lopa.runtime.contract import Bool, Int64
from lopa.runtime.frontier.run import Choose, run_from_frontier
from lopa.runtime.frontier.settled import settled
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.branches import Branch, branches_to_verify, hands_over
from lopa.runtime.sequence.opened import undecided_among
from lopa.runtime.sequence.row_statistics import RowStatistics, put_rows
from lopa.runtime.sequence.windows import Windows
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.rescore import as_said, rescored_branch
from lopa.runtime.strategy.settings import Rule


@dataclass(frozen=True, slots=True)
class Terms:
    """What every round of a request is decided by."""

    config: GenerationConfig
    rule: Rule
    mask_token: int
    ends: tuple[int, ...]
    """Tokens that end an answer; none where the config says that they do not."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the forward of a round said of its branches."""

    windows: Windows
    rows: RowStatistics
    """[B, Q]"""
    every: Candidates
    """[B, Q], made of them."""
    step: int
    """The number of the rule's step in which `every` would be drawn."""


def answers_of(windows: Windows, rows: RowStatistics, step: int, terms: Terms) -> Answers:
    """Of statistics `rows` [B, Q], with a candidate each."""
    return Answers(windows, rows, _candidates(rows, windows.wanted, step, terms), step)


def state_after(answers: Answers, state: Branch, row: int, step: int, terms: Terms) -> tuple[Branch, Fills]:
    """What the rule makes of `state` in its step number `step`, by the answers to the branch `row`, and what it fills.

    That branch is `state`, or one before it by whose answers it is guessed: about what `state` has decided since it is
    not asked.
    """
    windows, rule = answers.windows, terms.rule
    left = np.flatnonzero(undecided_among(state, windows.asked[row]))
    asked, columns = windows.asked[row][left], np.concatenate([np.arange(windows.kept), windows.kept + left])
    rows = answers.rows[row, columns]
    if rule.rescore is not as_said:
        state, said = rescored_branch(state, asked, rows[windows.kept :], rule.rescore, terms.config)
        put_rows(rows, slice(windows.kept, None), said)
    if rule.rescore is as_said and (step == answers.step or not terms.config.temperature):
        every = answers.every[row, columns]
    else:
        every = _candidates(rows, windows.wanted[row, columns], step, terms)
    chosen, fills, _ = decided(state, windows.kept, asked, rows, every, step, terms)
    after = branches_from_winner(chosen, (), terms.config, mask_token=terms.mask_token, ends=terms.ends)
    return branches_to_verify(after, terms.config, terms.mask_token)[0], fills


def decided(
    branch: Branch, kept: int, asked: Int64, rows: RowStatistics, every: Candidates, step: int, terms: Terms
) -> tuple[Branch, Fills, Candidates]:
    """`branch` after its fills, and what was offered for the positions that were `asked` about.

    Of its `rows` [Q] and of `every` candidate [Q] made of them in the step number `step`; `kept` as in Windows.
    """
    own = slice(kept, kept + len(asked))
    if kept and hands_over(branch):
        behind = np.array([branch.blocks[-1].end])
        first, _ = _run(branch, behind, rows[:1], every[:1], _whatever_may_be, step, terms)
        chosen, fills = handed_over(branch, first, mask_token=terms.mask_token, ends=terms.ends)
        return settled_branch(chosen, terms), fills, every[own]
    rule = partial(chosen_of_candidates, branch, asked, config=terms.config)
    proposed, chosen_places = _run(branch, asked, rows[own], every[own], rule, step, terms)
    fills = fills_of_chosen(asked, proposed, chosen_places)
    written = filled(branch, fills, mask_token=terms.mask_token, ends=terms.ends)
    return settled_branch(written, terms), fills, proposed


def made_ready(branches: tuple[Branch, ...], terms: Terms) -> tuple[Branch, ...]:
    """The `branches` of the next round, as they are verified.

    With a grammar they are settled before and after: what was taken back lets no block open, and what opens may be
    written at once.
    """
    if branches[-1].grammar is None:
        return branches_to_verify(branches, terms.config, terms.mask_token)
    written = tuple(settled_branch(branch, terms) for branch in branches)
    ready = branches_to_verify(written, terms.config, terms.mask_token)
    return tuple(settled_branch(branch, terms) for branch in ready)


def settled_branch(branch: Branch, terms: Terms) -> Branch:
    """`branch`, its decided tokens read by the grammar, without the rows behind the end of its text."""
    branch = settled(branch, mask_token=terms.mask_token, ends=terms.ends)
    if terms.ends and terms.config.drops_rows_after_end:
        return without_rows_after_end(branch, terms.ends)
    return branch


def _run(
    branch: Branch,
    asked: Int64,
    rows: RowStatistics,
    proposed: Candidates,
    choose: Choose,
    step: int,
    terms: Terms,
) -> tuple[Candidates, Bool]:
    """The candidates [n] of the `asked` positions [n], and which are decided: where there is a grammar, no others
    than it allows from the frontier on."""
    if branch.grammar is None or not len(asked):
        return proposed, choose(proposed, np.ones(len(asked), np.bool_))
    propose = partial(_candidates, step=step, terms=terms)
    return run_from_frontier(branch, asked, rows, propose, choose, terms.config)


def _candidates(rows: RowStatistics, positions: Int64, step: int, terms: Terms) -> Candidates:
    return candidates_from_rows(rows, positions, terms.config, step=step, mask_token=terms.mask_token)


def _whatever_may_be(candidates: Candidates, may: Bool) -> Bool:  # noqa: ARG001
    return may
