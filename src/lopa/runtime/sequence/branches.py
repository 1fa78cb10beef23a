"""A branch: one hypothesis of the sequence, and its bookkeeping between rounds (docs/lopa.md, sections 4 and 6).

Pure functions of numpy arrays; knows no device.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.sequence.blocks import (
    Blocks,
    BlockState,
    active,
    prompt_block,
    to_cache,
    with_complete_flags,
    with_counted_masks,
    with_longer_block,
    with_new_block,
)
from lopa.runtime.sequence.layout import Layout
from lopa.runtime.sequence.memory import Memory


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The token that a lookahead branch wrote ahead of its verification; rank 0 was the most confident."""

    rank: int
    position: int
    token: int
    confidence: float
    logprob: float | None = None
    """Only where they are asked for."""
    probability: float = math.nan
    """Probability of the token in the round that proposed it."""
    entropy: float = math.nan
    """In nats, of the row that proposed it."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Prompt and generated blocks as one hypothesis has them; undecided positions hold the mask token.

    `ended` tells that an end-of-text was written, after which no block is added. `lookahead` is None for the anchor.
    """

    tokens: Int64
    """[positions]"""
    decided: Bool
    """[positions], true for the whole prompt whatever its tokens are."""
    blocks: Blocks
    ended: bool
    lookahead: Lookahead | None
    layout: Layout
    logprobs: Float32 | None = None
    """[positions], of the decided tokens as the model said when it proposed them, else NaN; None: not asked for."""
    memory: Memory | None = None
    """What the strategy remembers; None: nothing."""
    taken_back: int = 0
    """How many decided positions a rule has undecided again."""
    grammar: GrammarState | None = None
    """The answer in front of the frontier as its grammar has read it; None: any text will do."""


def branch_from_prompt(
    prompt: Int64, layout: Layout, *, mask_token: int = 0, cached: bool = False, with_logprobs: bool = False
) -> Branch:
    """The anchor before the first round, its rows `cached` already or not: the prompt [length], and behind it masks
    where the layout is `whole`.
    """
    block = prompt_block(layout.first, cached=cached or layout.unseen > 0)
    more = layout.end - layout.prompt if layout.whole else 0
    tokens = np.concatenate([prompt, np.full(more, mask_token, np.int64)])
    decided = np.arange(len(tokens)) < layout.prompt
    logprobs = np.full(len(tokens), np.nan, np.float32) if with_logprobs else None
    return Branch(tokens, decided, (block,), ended=False, lookahead=None, layout=layout, logprobs=logprobs)


def prepared(branch: Branch, config: GenerationConfig, mask_token: int) -> Branch:
    """`branch` at the start of a round: at most one block added, completion flags set (section 4, points 1 and 2).

    A block that slides becomes as long as it was before its front fell due.
    """
    size = size_of_next_block(branch, branch.blocks[-1].progress, config)
    if size:
        branch = _with_open_block(branch, size, mask_token)
    blocks = with_complete_flags(branch.blocks, config.decoded_token_threshold)
    return branch if blocks is branch.blocks else replace(branch, blocks=blocks)


def _with_open_block(branch: Branch, size: int, mask_token: int) -> Branch:
    """`branch` with a fresh block of `size` positions, or with an open one that slides longer by so many."""
    blocks, start = branch.blocks, branch.blocks[-1].end
    more = max(0, start + size - len(branch.tokens))
    tokens, decided, logprobs = _with_masks(branch.tokens, branch.decided, branch.logprobs, more, mask_token)
    if branch.layout.slides and active(blocks):
        blocks = with_longer_block(blocks, size)
    else:
        blocks = with_new_block(blocks, size, size - int(np.count_nonzero(decided[start : start + size])))
    return replace(branch, tokens=tokens, decided=decided, blocks=blocks, logprobs=logprobs)


def branches_to_verify(branches: tuple[Branch, ...], config: GenerationConfig, mask_token: int) -> tuple[Branch, ...]:
    """The `branches` of a round, prepared for it; outside the published behaviour a whole one goes on alone.

    A branch with nothing left to decide would win the next round whatever the others do, and fill nothing.
    """
    ready = tuple(prepared(branch, config, mask_token) for branch in branches)
    if config.published:
        return ready
    whole = [branch for branch in ready if branch.decided.all() and len(branch.blocks) > 1]
    # Once more: what falls due now makes a block that slides go on.
    return (prepared(_with_finished_blocks_due(whole[0]), config, mask_token),) if whole else ready


def _with_finished_blocks_due(branch: Branch) -> Branch:
    """`branch`, which goes on alone: what a lookahead completed falls due at once, as no other branch has to agree."""
    done = active(branch.blocks)
    due = tuple(replace(block, state=BlockState.TO_CACHE) if block in done else block for block in branch.blocks)
    return replace(branch, blocks=due)


def with_logprobs(logprobs: Float32 | None, positions: Int64 | int, said: Float32 | float | None) -> Float32 | None:
    """A copy of a branch's `logprobs` with those `said` of the tokens written at `positions`."""
    if logprobs is None or said is None:
        return logprobs
    written = logprobs.copy()
    written[positions] = said
    return written


def taken_back(branch: Branch, positions: Int64, *, mask_token: int, ends: tuple[int, ...]) -> Branch:
    """`branch` with `positions` [n], decided ones of active blocks, undecided again.

    Whether it has ended is found anew. Where it has not, what was cut off behind an end-of-text is there again: the
    rest of the last block, and of a `whole` layout everything. Flags of blocks stay. Raises ValueError for other
    positions.
    """
    can = np.zeros(len(branch.tokens), np.bool_)
    for block in active(branch.blocks):
        can[block.start : block.end] = True
    if not (can & branch.decided)[positions].all():
        raise ValueError(f"received positions {positions}, expected decided ones of active blocks")
    if not len(positions):
        return branch
    tokens, decided, blocks, layout = branch.tokens.copy(), branch.decided.copy(), branch.blocks, branch.layout
    tokens[positions], decided[positions] = mask_token, False
    logprobs = with_logprobs(branch.logprobs, positions, math.nan)
    ended = has_end(tokens, decided, layout, ends)
    last = blocks[-1]
    if not ended and last.state is BlockState.ACTIVE:
        end = layout.end_of_block(last.start)
        blocks = with_longer_block(blocks, end - last.end)
        tokens, decided, logprobs = _with_masks(
            tokens, decided, logprobs, (layout.end if layout.whole else end) - len(tokens), mask_token
        )
    return replace(
        branch,
        tokens=tokens,
        decided=decided,
        blocks=with_counted_masks(blocks, decided),
        ended=ended,
        logprobs=logprobs,
    )


def is_end(tokens: Int64, ends: tuple[int, ...]) -> Bool:
    """[n]: which of `tokens` [n] are among the few `ends`."""
    found = np.zeros(tokens.shape, np.bool_)
    for end in ends:
        found |= tokens == end
    return found


def has_end(tokens: Int64, decided: Bool, layout: Layout, ends: tuple[int, ...]) -> bool:
    """Whether a decided end-of-text stands in the answer."""
    answer = slice(layout.prompt, None)
    return bool((is_end(tokens[answer], ends) & decided[answer]).any())


def _with_masks(
    tokens: Int64, decided: Bool, logprobs: Float32 | None, more: int, mask_token: int
) -> tuple[Int64, Bool, Float32 | None]:
    """A branch's arrays [positions] with so many undecided positions behind them."""
    return (
        np.concatenate([tokens, np.full(more, mask_token, np.int64)]),
        np.concatenate([decided, np.zeros(more, np.bool_)]),
        None if logprobs is None else np.concatenate([logprobs, np.full(more, np.nan, np.float32)]),
    )


def size_of_next_block(branch: Branch, progress: float, config: GenerationConfig) -> int:
    """Positions of the block to open when the last block's decided share is `progress`; 0 when none is to be.

    Where blocks hand over their successor's first token, it has to be there: decided behind the last block. Where rows
    of the open block are kept too, those of finished ones have to be committed. Of a block that slides: how many
    positions join it.
    """
    start, layout = branch.blocks[-1].end, branch.layout
    if layout.slides:
        front = next((block.start for block in active(branch.blocks)), start)
        return 0 if branch.ended else layout.end_of_block(front) - start
    lacks_first = layout.hands_over and start > layout.unseen and not branch.decided[start:].any()
    lacks_commit = config.cache == "sub_block" and any(block.end > block.start for block in to_cache(branch.blocks))
    if lacks_first or lacks_commit or branch.ended or progress < config.add_threshold:
        return 0
    return layout.end_of_block(start) - start


def nothing_left(branch: Branch, config: GenerationConfig, mask_token: int) -> bool:
    """True when a prepared branch needs no further round (section 4, point 3).

    The published loop also looks for the mask token in the prompt, and then caches the last block once more (quirk 4);
    those that keep the rows of the whole answer, Fast-dLLM's and Dream's, do not.
    """
    if active(branch.blocks) or (branch.blocks[-1].end < branch.layout.end and not branch.ended):
        return False
    recache = (
        config.published
        and not branch.layout.whole
        and bool((branch.tokens[: branch.layout.prompt] == mask_token).any())
    )
    return not (recache and to_cache(branch.blocks))


def hands_over(branch: Branch) -> bool:
    """Whether a commit of all that is there now has to decide the next block's first token."""
    end = branch.blocks[-1].end
    return branch.layout.hands_over and not active(branch.blocks) and end == len(branch.tokens) < branch.layout.end


def decided_length(branch: Branch) -> int:
    """Generated positions before the first undecided one."""
    generated = branch.decided[branch.layout.prompt :]
    return len(generated) if generated.all() else int(np.argmin(generated))


def settled_length(branch: Branch) -> int:
    """As `decided_length`, of finished blocks alone: where rules take decided positions back, the rest may change."""
    end = next((block.start for block in active(branch.blocks)), len(branch.tokens))
    return min(decided_length(branch), max(0, end - branch.layout.prompt))
