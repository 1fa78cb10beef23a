"""From the branches of one step to the windows of one forward (docs/lopa.md, section 2).

Pure; knows the contract's arrays, no device.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.blocks import BlockState
from lopa.runtime.sequence.branches import Branch
from lopa.runtime.sequence.opened import asked_positions
from lopa.runtime.sequence.reach import Reach, reach_from_config


@dataclass(frozen=True)
class SharedRows:
    """All windows of a request as one of S rows: the anchor's, then of every other branch those that only it has.

    No row is padding. (lopa.runtime.sequence.shared_rows makes them.)
    """

    input_ids: Int64
    """[1, S]"""
    positions: Int64
    """[1, S]"""
    mask: Bool
    """[1, S, S]"""
    logits_index: Int64
    """[1, M]: the wanted rows of all branches, each once, ascending."""
    answers: Int64
    """[B, Q]: which of those M answers for a wanted row of a branch; any where that is padding or lacking."""


@dataclass(frozen=True)
class Windows:
    """The windows of one request's branches, all on the same rows of its prefix cache.

    `kept` columns of the wanted rows come before those of `asked`: when finished rows are committed and a row predicts
    the next position, column 0 is the last committed row, which alone predicts the first position behind it in all
    rounds until the next commit.
    """

    prefix: int
    """Rows of the prefix cache that every window sees; what is behind them is forgotten before the forward."""
    commit: int
    """Rows at the beginning that the winner commits (0: none)."""
    input_ids: Int64
    """[B, W]"""
    positions: Int64
    """[B, W], of the rows as the model counts them; any where there is padding."""
    mask: Bool
    """[B, W, W]"""
    lengths: tuple[int, ...]
    """Window rows of each branch, padding not counted; the anchor's shadow rows are its last."""
    asked: tuple[Int64, ...]
    """Per branch the positions whose candidates are wanted, ascending: its undecided ones, unless published quirks or
    the layout say otherwise."""
    wanted: Int64
    """[B, Q]: absolute positions whose candidates are wanted: `kept` columns, then `asked`, then padding."""
    logits_index: Int64
    """[B, Q]: the window rows that predict them."""
    lacking: Bool
    """[B, Q]: positions that no row of the window predicts; the kept row of an earlier round does, and check_rows sees
    to it that it speaks of them."""
    kept: int
    """Columns before those of `asked`: 0 or 1."""
    judged: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[S]: decided positions of the anchor that shadow rows judge; what is said of them stands behind what it asks
    (lopa.runtime.sequence.shadow_rows)."""
    cached: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[prefix]: positions of the cached rows that every window sees, as the model counts them, in the cache's order."""
    shared: SharedRows | None = None
    """What the forward is given in place of the windows, where rows that are equal on several branches are computed
    once; the first `commit` rows are then those of every branch."""

    @property
    def counts(self) -> Int64:
        """[B]: wanted rows of each branch, padding not counted."""
        counts = np.array([self.kept + len(asked) for asked in self.asked])
        counts[-1] += len(self.judged)
        return counts

    @property
    def forward_rows(self) -> "Windows | SharedRows":
        """What the forward is given: input_ids, positions, mask and logits_index, of B branches or of one."""
        return self if self.shared is None else self.shared

    @property
    def computed_rows(self) -> int:
        """Rows that the forward is given, padding not counted."""
        return sum(self.lengths) if self.shared is None else self.shared.input_ids.size

    def branch_of_commit(self, winner: int) -> int:
        """The branch of the forward whose first rows are committed when `winner` wins."""
        return winner if self.shared is None else 0


def windows_from_branches(
    branches: tuple[Branch, ...],
    config: GenerationConfig,
    *,
    prediction_shift: int,
    pad_token: int,
    anew: bool = False,
) -> Windows:
    """Windows of prepared branches. The anchor, last of them, says what is to be cached: all branches agree on it.

    `anew`: rows that are kept for a while are computed again, as in a block's first round.
    """
    reach = reach_from_config(config)
    states = [_as_in_first_round(branch) for branch in branches] if anew else branches
    reaches = [reach(branch, states[-1], config) for branch in states]
    prefix, commit, lasting = reaches[-1].prefix, reaches[-1].commit, reaches[-1].lasting
    lengths = tuple(len(each.order) for each in reaches)
    width = max(lengths)

    shape = (len(branches), width)
    input_ids = np.full(shape, pad_token, np.int64)
    positions = np.empty(shape, np.int64)
    positions[:] = prefix + np.arange(width)
    mask = np.zeros((*shape, width), np.bool_)
    longest = max(reaches, key=lambda each: len(each.order)).order
    seen = _seen(longest, branches[-1], config)
    for row, (branch, each) in enumerate(zip(branches, reaches, strict=True)):
        length, order = len(each.order), each.order
        input_ids[row, :length] = branch.tokens[order]
        positions[row, :length] = order - branch.layout.unseen
        alike = np.array_equal(order, longest[:length])
        mask[row, :length, :length] = seen[:length, :length] if alike else _seen(order, branch, config)
        padding = np.arange(length, width)
        mask[row, padding, padding] = True

    asked = tuple(
        _answered(asked_positions(branch, config), each, prediction_shift)
        for branch, each in zip(branches, reaches, strict=True)
    )
    kept = 1 if commit and lasting and prediction_shift else 0
    # Padding asks for the window's first row; a forward is never asked for zero rows.
    wanted = np.full(
        (len(branches), max(1, kept + max(map(len, asked)))), reaches[-1].order[0] + prediction_shift, np.int64
    )
    wanted[:, :kept] = reaches[-1].order[0] + commit
    for row, each_asked in enumerate(asked):
        wanted[row, kept : kept + len(each_asked)] = each_asked
    logits_index = np.empty_like(wanted)
    # No row predicts the first position that a row stands for. Where published quirks ask about it, its own answers.
    speaking = np.maximum(wanted - prediction_shift, branches[-1].layout.unseen)
    for row, each in enumerate(reaches):
        logits_index[row] = _rows_of_positions(each.order, speaking[row])
    lacking = logits_index < 0
    return Windows(
        prefix,
        commit,
        input_ids,
        positions,
        mask,
        lengths,
        asked,
        wanted,
        np.maximum(logits_index, 0),
        lacking,
        kept,
        cached=reaches[-1].cached - branches[-1].layout.unseen,
    )


def check_rows(windows: Windows, *, prediction_shift: int, unseen: int, kept_for: int | None) -> None:
    """Raise RuntimeError unless every position that `windows` ask about is answered by a row that speaks of it.

    That is a row of the branch's window, or the kept row, which speaks of the position `kept_for` (None: there is no
    kept row). `unseen` as in Layout. Statistics of another position look like any others, so a wrong row would show as
    wrong text alone.
    """
    needed = np.arange(windows.wanted.shape[1]) < windows.counts[:, None]
    if windows.shared is None:
        spoken = np.take_along_axis(windows.positions, windows.logits_index, axis=1)
    else:
        spoken = windows.shared.positions[0, windows.shared.logits_index[0]][windows.shared.answers]
    spoken = np.where(windows.wanted == unseen, unseen, spoken + unseen + prediction_shift)
    if kept_for is None:
        right = ~windows.lacking & (spoken == windows.wanted)
    else:
        right = np.where(windows.lacking, kept_for, spoken) == windows.wanted
    if not right[needed].all():
        raise RuntimeError(
            f"no row speaks of the positions {np.unique(windows.wanted[needed & ~right])}, expected a computed or kept "
            "one for every position that a round asks about (this is a bug in lopa, please report it)"
        )


def _answered(asked: Int64, reach: Reach, prediction_shift: int) -> Int64:
    """Return the positions among `asked` that the rows of the round predict."""
    return asked[np.isin(asked - prediction_shift, reach.order)] if reach.partial else asked


def _as_in_first_round(branch: Branch) -> Branch:
    """`branch` as if its active blocks had just been opened."""
    blocks = (replace(block, rounds=0) if block.state is BlockState.ACTIVE else block for block in branch.blocks)
    return replace(branch, blocks=tuple(blocks))


def _rows_of_positions(order: Int64, positions: Int64) -> Int64:
    """The place of each of `positions` in `order`, -1 for those that are not there."""
    rows = np.full(max(int(order.max()), int(positions.max())) + 1, -1, np.int64)
    rows[order] = np.arange(len(order))
    return rows[positions]


def _seen(order: Int64, branch: Branch, config: GenerationConfig) -> Bool:
    """[W, W]: which row sees which, for rows at the positions `order`."""
    if config.window == "full":
        return np.ones((len(order), len(order)), np.bool_)
    if config.window == "causal":
        return np.tri(len(order), dtype=np.bool_)
    number = branch.layout.numbers(order)
    return number[:, None] >= number[None, :]
