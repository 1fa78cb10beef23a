"""Stage 5 on a branch: what of it is judged, how probable that is, and the branch without what is doubted. Pure."""

from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.blocks import Block, active
from lopa.runtime.sequence.branches import Branch, is_end, taken_back
from lopa.runtime.sequence.row_statistics import RowStatistics
from lopa.runtime.sequence.windows import Windows
from lopa.runtime.strategy.settings import Rule
from lopa.runtime.strategy.take_back import BEFORE_FIRST_STEP, JudgedBlock, room_for_doubt


def judged_positions(anchor: Branch, rule: Rule, config: GenerationConfig, ends: tuple[int, ...]) -> Int64:
    """[S], ascending: decided positions of the answer that a round may take back, whatever it decides.

    Never an end-of-text: rows behind it may be gone.
    """
    if rule.take_back is None or config.doubt_threshold is None or anchor.taken_back >= config.most_taken_back:
        return np.empty(0, np.int64)
    open_now = np.zeros(len(anchor.tokens), np.bool_)
    for block in active(anchor.blocks):
        open_now[block.start : block.end] = room_for_doubt(_accepted_before(block)) > 0
    open_now[: anchor.layout.prompt] = False
    return np.flatnonzero(open_now & anchor.decided & ~is_end(anchor.tokens, ends))


def judged_probabilities(windows: Windows, rows: RowStatistics, anchor: Branch) -> Float32:
    """[S]: what the statistics `rows` [B, Q] of a round say of the tokens at its judged positions.

    A token that is not among the K best counts as impossible.
    """
    if not len(windows.judged):
        return np.empty(0, np.float32)
    first = windows.kept + len(windows.asked[-1])
    said = rows[-1, first : first + len(windows.judged)]
    found = said.topk_ids == anchor.tokens[windows.judged][:, None]
    probabilities: Float32 = np.where(found, np.exp(said.topk_logprobs), np.float32(0)).sum(axis=-1, dtype=np.float32)
    return probabilities


def without_doubted(
    winner: Branch,
    written: Int64,
    judged: Int64,
    probabilities: Float32,
    rule: Rule,
    config: GenerationConfig,
    *,
    mask_token: int,
    ends: tuple[int, ...],
) -> tuple[Branch, Int64]:
    """The `winner` of a round without the positions that its rule takes back, and these, block by block.

    `written` are the positions that the round decided, `probabilities` [S] those of the positions `judged` [S].
    """
    if rule.take_back is None or config.doubt_threshold is None:
        return winner, np.empty(0, np.int64)
    doubted: list[Int64] = []
    blocks, left = [], config.most_taken_back - winner.taken_back
    for block in winner.blocks:
        accepted = int(np.count_nonzero((block.start <= written) & (written < block.end)))
        if block in active(winner.blocks):
            own = slice(*np.searchsorted(judged, (block.start, block.end)))
            offered = JudgedBlock(probabilities[own], accepted, _accepted_before(block), left)
            doubted.append(judged[own][rule.take_back(offered, config)])
            left -= len(doubted[-1])
            block = replace(block, accepted=accepted)
        blocks.append(block)
    positions = np.concatenate([np.empty(0, np.int64), *doubted])
    after = replace(winner, blocks=tuple(blocks), taken_back=winner.taken_back + len(positions))
    return taken_back(after, positions, mask_token=mask_token, ends=ends), positions


def _accepted_before(block: Block) -> int:
    return BEFORE_FIRST_STEP if block.accepted is None else block.accepted
