"""D2F's pipeline: open blocks, mark them for the cache, and make the next branches (docs/reference/algorithm.md,
section 4).

Between rounds `normalize_branch` and `branches_of_round` normalize every branch. Its grammar has read it
(docs/how-to/structured-output.md), nothing follows its end of text, and its next block is open.
"""

from itertools import pairwise

import numpy as np

from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import (
    Block,
    Blocks,
    BlockState,
    Branch,
    BranchGrammar,
    Lookahead,
    with_forced_tokens,
    with_longer_block,
    with_masks,
    with_remasked,
    without_rows_after_end,
)
from lopa.runtime.state.context import Context
from lopa.runtime.strategy.installed import errors_of_strategy


def normalize_branch(branch: Branch, context: Context) -> Branch:
    """Return `branch` after tokens were written: read by its grammar and cut off behind its end of text."""
    if branch.grammar is not None and not branch.grammar.ended:
        branch = advance_grammar(branch, branch.grammar, context)
    if not branch.ended or not context.params.drop_after_eos:
        return branch
    if branch.memory is None:
        return without_rows_after_end(branch, context.ends)
    with errors_of_strategy(context.strategy.name, "before of its memory"):
        return without_rows_after_end(branch, context.ends)


def branches_of_round(branches: tuple[Branch, ...], context: Context) -> tuple[Branch, ...]:
    """Return the normalized `branches` as a round verifies them, each with its next block open.

    Outside reference mode a branch with nothing masked continues alone, since it would win the round and unmask
    nothing. If it may still be edited, its blocks stay active. A grammar also reads into a newly opened block.
    """
    opened = tuple([with_next_block(branch, context) for branch in branches])
    if not context.params.reference:
        whole = (number for number, branch in enumerate(opened) if not len(branch.masked) and _has_answer(branch))
        alone = next(whole, None)
        if alone is not None and context.params.edits:
            branches, opened = (branches[alone],), (opened[alone],)
        elif alone is not None:
            branches, opened = (branches[alone],), (with_finished_blocks_due(opened[alone], context),)
    if opened[-1].grammar is None:
        return opened
    return tuple(
        normalize_branch(after, context) if after.blocks[-1].end > before.blocks[-1].end else after
        for before, after in zip(branches, opened, strict=True)
    )


def next_anchor(winner: Branch) -> Branch:
    """Return the anchor of the next round: the winner with its blocks' next states (section 6 K)."""
    blocks = after_slide(winner) if winner.layout.slides else after_round(winner)
    return winner.changed(blocks=blocks, lookahead=None)


def next_lookahead(anchor: Branch, lookahead: Lookahead, context: Context) -> Branch:
    """Return a lookahead branch of the next round: its `anchor` with one more token (section 6 J).

    A block that only the lookahead token completes stays active, so that all branches agree on the rows that are due.
    """
    tokens, unmasked, at = anchor.tokens.copy(), anchor.unmasked.copy(), lookahead.position
    tokens[at] = lookahead.token
    unmasked[at] = lookahead.token != context.mask_token
    logprobs = anchor.logprobs
    if logprobs is not None and lookahead.logprob is not None:
        logprobs = logprobs.copy()
        logprobs[at] = lookahead.logprob
    blocks = anchor.blocks
    if unmasked[at]:
        (number,) = [number for number, block in enumerate(blocks) if block.start <= at < block.end]
        shorter = blocks[number]._replace(masks=blocks[number].masks - 1)
        blocks = (*blocks[:number], shorter, *blocks[number + 1 :])
    return anchor.changed(
        tokens=tokens,
        unmasked=unmasked,
        blocks=blocks,
        ended=anchor.ended or lookahead.token in context.ends,
        lookahead=lookahead,
        logprobs=logprobs,
    )


def with_next_block(branch: Branch, context: Context) -> Branch:
    """Return `branch` with completion flags set and at most one more block (section 4, points 1 and 2).

    A sliding block regains the length that it had before its front was committed.
    """
    size = next_block_size(branch, _progress(branch.blocks[-1]), context.params)
    if size:
        branch = _with_open_positions(branch, size, context)
    blocks = with_activated_blocks(branch.blocks, context.params.decoded_token_threshold)
    return branch if blocks == branch.blocks else branch.changed(blocks=blocks)


def next_block_size(branch: Branch, progress: float, params: DecodingParams) -> int:
    """Return the size of the block to open when the unmasked share of the last block is `progress`; 0 for none.

    A layout with `hands_over` needs the next block's first token before it opens. If blocks are unmasked one by one,
    the last one has to be finished, edits included. With cache sub_block the rows of
    finished blocks have to be committed first. For a sliding block the result is the number of positions that join it.
    """
    start, layout = branch.blocks[-1].end, branch.layout
    if layout.slides:
        front = branch.active[0].start if branch.active else start
        return 0 if branch.ended else layout.end_of_block(front) - start
    lacks_first = layout.hands_over and start > layout.unseen and not branch.unmasked[start:].any()
    lacks_edits = params.edits and params.block_add_threshold >= 1 and branch.blocks[-1].state is BlockState.ACTIVE
    lacks_commit = params.cache == "sub_block" and any(block.end > block.start for block in branch.due)
    if lacks_first or lacks_edits or lacks_commit or branch.ended or progress < params.block_add_threshold:
        return 0
    return layout.end_of_block(start) - start


def with_finished_blocks_due(branch: Branch, context: Context) -> Branch:
    """Return a branch with nothing masked, which continues alone, with all active blocks due.

    There is no other branch that has to agree on them. A sliding block advances.
    """
    blocks = tuple(
        block._replace(state=BlockState.TO_CACHE) if block.state is BlockState.ACTIVE else block
        for block in branch.blocks
    )
    return with_next_block(branch.changed(blocks=blocks), context)


def hands_over(branch: Branch) -> bool:
    """Return True if committing all rows has to unmask the next block's first token."""
    end = branch.blocks[-1].end
    return branch.layout.hands_over and not branch.active and end == len(branch.tokens) < branch.layout.end


def _has_answer(branch: Branch) -> bool:
    """Return True if some block of the answer was opened."""
    return branch.blocks[-1].end > branch.layout.first


def _with_open_positions(branch: Branch, size: int, context: Context) -> Branch:
    """Return `branch` with a new block of `size` positions, or with its sliding block extended by `size`."""
    start = branch.blocks[-1].end
    branch = with_masks(branch, max(0, start + size - len(branch.tokens)), context)
    if branch.layout.slides and branch.active:
        blocks = with_longer_block(branch.blocks, size)
    else:
        masks = size - int(np.count_nonzero(branch.unmasked[start : start + size]))
        blocks = with_new_block(branch.blocks, size, masks)
    return branch.changed(blocks=blocks)


def with_new_block(blocks: Blocks, size: int, masks: int | None = None) -> Blocks:
    """Return `blocks` and a new active block of `size` positions behind them, `masks` of them masked (None: all)."""
    end = blocks[-1].end
    masked = size if masks is None else masks
    return (*blocks, Block(end, end + size, masks=masked, state=BlockState.ACTIVE, fully_activated=False))


def with_activated_blocks(blocks: Blocks, decoded_token_threshold: float) -> Blocks:
    """Return `blocks` with each block fully activated whose predecessor has reached the threshold."""
    result = list(blocks)
    for number, block in enumerate(blocks):
        if number and not block.fully_activated and _progress(blocks[number - 1]) >= decoded_token_threshold:
            result[number] = block._replace(fully_activated=True)
    return tuple(result)


def _progress(block: Block) -> float:
    """Return the unmasked share of a block, 1 for an empty one."""
    total = block.end - block.start
    return (total - block.masks) / total if total else 1.0


def after_round(winner: Branch) -> Blocks:
    """Return the blocks of a round's winner after it (section 6 K): due blocks are cached, finished blocks become due.

    A block behind an active one stays active.
    """
    due, active = winner.due, winner.active
    cached = winner.blocks[: len(winner.blocks) - len(due) - len(active)]
    result = [*cached, *[block._replace(state=BlockState.IN_CACHE) for block in due]]
    edges = [block.start for block in active] + [winner.blocks[-1].end]
    masked_before = winner.masked.searchsorted(edges).tolist()
    """Number of masked positions before each active block's start, and before the last one's end."""
    state = BlockState.TO_CACHE
    for block, (before, until) in zip(active, pairwise(masked_before), strict=True):
        if until > before or block.is_unsettled:
            state = BlockState.ACTIVE
        result.append(block.after_round(until - before, state))
    return tuple(result)


def after_slide(winner: Branch) -> Blocks:
    """Return the blocks after a round that `winner` won with its sliding block. Due positions are cached, and the
    leading unmasked run becomes due.
    """
    end = winner.blocks[-1].end
    start = winner.active[0].start if winner.active else end
    masked = winner.masked[slice(*winner.masked.searchsorted((start, end)))]
    run = int(masked[0]) if len(masked) else end
    parts = (
        Block(0, start, masks=0, state=BlockState.IN_CACHE, fully_activated=True),
        Block(start, run, masks=0, state=BlockState.TO_CACHE, fully_activated=True),
        Block(run, end, masks=len(masked), state=BlockState.ACTIVE, fully_activated=True),
    )
    return tuple(block for block in parts if block.end > block.start)


def advance_grammar(branch: Branch, grammar: BranchGrammar, context: Context) -> Branch:
    """Return `branch` with its grammar advanced to the first masked position, within open blocks.

    An unmasked token that is not possible at its position is remasked. Forced tokens are written at masked positions,
    unless the answer could then no longer end in time.
    """
    tokens, unmasked = branch.tokens, branch.unmasked
    forced: dict[int, int] = {}
    position, end = first_masked(branch, grammar), branch.blocks[-1].end
    rejected: list[int] = []
    pending: tuple[int, ...] = ()
    while position < end and not grammar.ended:
        remaining = positions_behind(branch, position)
        if unmasked[position] and position not in rejected:
            after = grammar.after(int(tokens[position]), remaining)
            if after is None:
                rejected.append(position)
                continue
            pending = ()
        else:
            pending = pending or grammar.forced()
            after = grammar.after(pending[0], remaining) if pending else None
            if after is None:
                break
            forced[position], pending = pending[0], pending[1:]
        grammar, position = after, position + 1
    if rejected:
        branch = with_remasked(branch, np.array(rejected), context)
    if forced:
        branch = with_forced_tokens(branch, forced, context)
    return branch.changed(grammar=grammar.with_rejected(len(rejected)))


def first_masked(branch: Branch, grammar: BranchGrammar) -> int:
    """Return the position behind the tokens that `grammar` has read of the answer of `branch`."""
    return branch.layout.prompt + grammar.length


def positions_behind(branch: Branch, position: int) -> int:
    """Return how many positions of the answer follow `position`."""
    return branch.layout.end - position - 1
