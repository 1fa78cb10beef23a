"""A round of LoPA on one request: which branch wins by the answers to all, and what becomes of it. Pure."""

from dataclasses import dataclass

import numpy as np

from lopa.runtime.algorithm.competition import branch_confidence, winner_of
from lopa.runtime.algorithm.deciding import Answers, Terms, answers_of, decided
from lopa.runtime.algorithm.filling import Fills, positions_written
from lopa.runtime.contract import Float32, Int64
from lopa.runtime.frontier.run import may_stand, rows_at_frontiers
from lopa.runtime.sequence.branches import Branch
from lopa.runtime.sequence.opened import open_among
from lopa.runtime.sequence.row_statistics import RowStatistics
from lopa.runtime.sequence.windows import Windows
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.judging import judged_probabilities, without_doubted
from lopa.runtime.strategy.rescore import rescored


@dataclass(frozen=True, slots=True)
class Contest:
    """Of a round's branches, the anchor last."""

    branches: tuple[Branch, ...]
    """With what the strategy remembers of them behind the round."""
    answers: Answers
    """Rows [B, Q] as rescored, and candidates, without what grammars forbid at frontiers."""
    doubt: Float32
    """[positions that are judged]: how probable the anchor's tokens are to rows that do not see them."""
    confidences: tuple[float, ...]
    winner: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a round made of its winner."""

    branch: Branch
    """After its fills, without what is doubted."""
    fills: Fills
    left: Int64
    """[n], positions that the next round's lookaheads may be written at, ascending."""
    proposed: Candidates
    """[n], for these."""
    taken_back: Int64


def contest_of(branches: tuple[Branch, ...], windows: Windows, rows: RowStatistics, step: int, terms: Terms) -> Contest:
    """Of the statistics `rows` [B, Q] of the `windows` of `branches`, in the step number `step`."""
    branches, rows = rescored(branches, windows, rows, terms.rule.rescore, terms.config)
    allowed = rows
    if branches[-1].grammar is not None:
        allowed = rows_at_frontiers(branches, windows, rows, terms.config)
    answers = answers_of(windows, allowed, step, terms)
    confidences = mean_confidences(answers)
    doubt = judged_probabilities(windows, rows, branches[-1])
    return Contest(branches, answers, doubt, confidences, winner_of(confidences))


def asked_candidates(answers: Answers) -> tuple[Candidates, ...]:
    """Of each branch those of the positions that it asked about."""
    kept = answers.windows.kept
    return tuple(answers.every[row, kept : kept + len(asked)] for row, asked in enumerate(answers.windows.asked))


def mean_confidences(answers: Answers) -> tuple[float, ...]:
    """How confident each branch is of what it asked about."""
    kept = answers.windows.kept
    return tuple(
        branch_confidence(answers.every.confidences[row, kept : kept + len(asked)])
        for row, asked in enumerate(answers.windows.asked)
    )


def outcome_of(contest: Contest, terms: Terms) -> Outcome:
    """The winner after its round."""
    windows, winner = contest.answers.windows, contest.winner
    branch, asked = contest.branches[winner], windows.asked[winner]
    chosen, fills, proposed = decided(
        branch,
        windows.kept,
        asked,
        contest.answers.rows[winner],
        contest.answers.every[winner],
        contest.answers.step,
        terms,
    )
    chosen, doubted = without_doubted(
        chosen,
        positions_written(branch, fills),
        windows.judged,
        contest.doubt,
        terms.rule,
        terms.config,
        mask_token=terms.mask_token,
        ends=terms.ends,
    )
    may = ~fills.chosen & open_among(chosen, asked, terms.config) & may_stand(chosen, asked, proposed)
    left = np.flatnonzero(may)
    return Outcome(chosen, fills, asked[left], proposed[left], doubted)
