"""A branch: one hypothesis of the sequence, with its blocks and tokens, and the answer that it gives
(docs/reference/algorithm.md, sections 1 and 4)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.records import derived
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.answer_state import AnswerState, StopReason
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import Layout
from lopa.runtime.strategy import Memory


class BranchGrammar(Protocol):
    """A grammar that has accepted the first `length` tokens of an answer. It is immutable.

    `remaining` is the number of positions left in the answer, including the end of text.
    """

    @property
    def length(self) -> int:
        """Number of tokens read."""

    @property
    def ended(self) -> bool:
        """True if the last token was an end of text."""

    @property
    def remasked(self) -> int:
        """Number of tokens behind the first masked position that the grammar has rejected and remasked."""

    @property
    def has_text(self) -> Bool:
        """[vocabulary]: True for tokens that write text."""

    def after(self, token: int, remaining: int) -> Self | None:
        """Return the state after `token`, with `remaining` positions left, or None if the token is not possible here.

        A token is not possible if the grammar forbids it or the answer could no longer end in time.
        """

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow; empty if the model has a choice."""

    def first_ending_token(self, remaining: int) -> int:
        """Return the first token of an ending that fits into `remaining` positions, this one included."""

    def allows(self, token: int) -> bool:
        """Return True if `token`, possibly an end of text, may follow, regardless of the remaining positions."""

    def allowed(self) -> Bool:
        """Return the tokens that may follow, [vocabulary], ends of text included."""

    def pieces(self, token: int) -> Iterator[int]:
        """Yield the tokens whose text begins the text of `token`, the longest first."""

    def with_rejected(self, count: int) -> Self:
        """Return this state after `count` more tokens were rejected and remasked."""


class BlockState(Enum):
    """State of a block: active (being unmasked), to be cached, or cached."""

    ACTIVE = "active"
    TO_CACHE = "to_cache"
    IN_CACHE = "in_cache"


class Block(NamedTuple):
    """Positions [start, end) of a sequence, of which `masks` are masked. Block 0 is the prompt, or the part of it that
    fills whole blocks. If some of its rows were cached by an earlier request, block 0 has them and block 1 the rest.

    `fully_activated` means that the block before is nearly unmasked, so that this block unmasks at least one position
    per step. The flag never reverts. `rounds` counts the rounds in which the block was active.
    """

    start: int
    end: int
    masks: int
    state: BlockState
    fully_activated: bool
    rounds: int = 0
    accepted: int | None = None
    """Number of positions unmasked in the last round; None before the first round. Only remasking strategies set it."""
    edit_rounds: int = 0
    """Rounds that began with nothing masked up to the block's end. Only decodes that edit count them."""
    is_unsettled: bool = False
    """True if the next round may still edit the block, so that it is not finished. Only decodes that edit set it."""

    def after_round(self, masks: int, state: BlockState) -> "Block":
        """Return this block after one more round in which it was active, faster than by `_replace`."""
        more = self.rounds + 1, self.accepted, self.edit_rounds, self.is_unsettled
        return Block(self.start, self.end, masks, state, self.fully_activated, *more)


Blocks = tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Lookahead:
    """A token that a lookahead branch assumes before verification. Rank 0 is the most confident."""

    rank: int
    position: int
    token: int
    confidence: float
    logprob: float | None = None
    """Log-probability of the token; None if not requested."""
    probability: float = math.nan
    """Probability in the round that proposed the token."""
    entropy: float = math.nan
    """Entropy in nats of the row that proposed the token."""


@dataclass(frozen=True)
class Branch:
    """Prompt and generated blocks of one hypothesis. Masked positions hold the mask token."""

    tokens: Int64
    """[positions]: token ids."""
    unmasked: Bool
    """[positions]: True for unmasked positions, and for the whole prompt even if it contains the mask token."""
    blocks: Blocks
    ended: bool
    """True once an end of text is written; no block is added after it."""
    lookahead: Lookahead | None
    """Lookahead token; None for the anchor."""
    layout: Layout
    logprobs: Float32 | None = None
    """[positions]: log-probabilities of unmasked tokens when they were proposed, NaN for other positions; None if not
    requested."""
    memory: Memory | None = None
    """Memory of the strategy; None if it has none."""
    remasked: int = 0
    """Number of positions that were remasked."""
    grammar: BranchGrammar | None = None
    """Grammar state behind the last token before the first masked position; None without a grammar."""
    final_grammar: BranchGrammar | None = None
    """Grammar state behind finished blocks, from which text with edited tokens is read; None without either."""

    def changed(self, **changes: Any) -> Self:
        """Return this branch with `changes` of its fields.

        A round does this several times for every branch. Unlike dataclasses.replace it keeps the values below whose
        field stays, and takes a third of the time.
        """
        values = {**vars(self), **changes}
        if "unmasked" in changes:
            values.pop("masked", None)
        if "blocks" in changes:
            values.pop("active", None)
            values.pop("due", None)
        branch = object.__new__(type(self))
        vars(branch).update(values)
        return branch

    @derived
    def masked(self) -> Int64:
        """Masked positions, ascending."""
        return (~self.unmasked).nonzero()[0]

    @derived
    def active(self) -> Blocks:
        """Blocks that are being unmasked."""
        return tuple([block for block in self.blocks if block.state is BlockState.ACTIVE])

    @derived
    def due(self) -> Blocks:
        """Blocks that the next forward commits to the cache. They are adjacent."""
        return tuple([block for block in self.blocks if block.state is BlockState.TO_CACHE])


def first_branch(prompt: Int64, layout: Layout, context: Context, *, cached: int = 0) -> Branch:
    """Return the anchor before the first round: the prompt [length] and, with a `whole` layout, masked positions behind
    it.

    A layout with holes takes the whole text, with any tokens in its holes. The rows of the first `cached` positions are
    already in the cache.
    """
    cached = max(cached, layout.unseen)
    blocks: Blocks = (
        Block(0, cached, masks=0, state=BlockState.IN_CACHE, fully_activated=True),
        Block(cached, layout.first, masks=0, state=BlockState.TO_CACHE, fully_activated=True),
    )
    # The prompt is one block in each state, and an empty block only if nothing is cached.
    blocks = blocks[:1] if cached == layout.first > 0 else blocks[0 if cached else 1 :]
    more = layout.end - layout.prompt if layout.whole and not layout.holes else 0
    tokens = np.concatenate([prompt, np.full(more, context.mask_token, np.int64)])
    unmasked = np.arange(len(tokens)) < layout.prompt if not layout.holes else np.ones(len(tokens), np.bool_)
    for start, end in layout.holes:
        tokens[start:end], unmasked[start:end] = context.mask_token, False
    logprobs = np.full(len(tokens), np.nan, np.float32) if context.params.logprobs else None
    return Branch(tokens, unmasked, blocks, ended=False, lookahead=None, layout=layout, logprobs=logprobs)


def with_tokens(branch: Branch, positions: Int64, tokens: Int64, logprobs: Float32 | None, context: Context) -> Branch:
    """Return `branch` with `tokens` [n] and their `logprobs` [n] at `positions` [n]. `logprobs` is None if not
    requested.

    A position that receives the mask token stays masked (quirk 3). `ended` is computed again, because a rule that
    overwrites unmasked tokens may write an end of text into the prompt, or overwrite one.
    """
    written, unmasked = branch.tokens.copy(), branch.unmasked.copy()
    written[positions] = tokens
    unmasked[positions] = tokens != context.mask_token
    return branch.changed(
        tokens=written,
        unmasked=unmasked,
        ended=has_end(written, unmasked, branch.layout, context.ends),
        logprobs=_with_logprobs(branch.logprobs, positions, logprobs),
    )


def with_forced_tokens(branch: Branch, forced: dict[int, int], context: Context) -> Branch:
    """Return `branch` with tokens, by position, that no forward proposed."""
    positions, tokens = np.array(list(forced)), np.array(list(forced.values()))
    written = with_tokens(branch, positions, tokens, np.full(len(forced), np.nan, np.float32), context)
    return written.changed(blocks=with_counted_masks(branch.blocks, written.unmasked))


def with_first_of_next_block(branch: Branch, token: Int64, logprob: Float32 | None, context: Context) -> Branch:
    """Return `branch` with the first token [1] of the next block behind its last block (Fast-dLLM v2)."""
    longer = with_masks(branch, 1, context)
    return with_tokens(longer, np.array([branch.blocks[-1].end]), token, logprob, context)


def with_remasked(branch: Branch, positions: Int64, context: Context) -> Branch:
    """Return `branch` with `positions` [n], unmasked ones of active blocks, masked again.

    `ended` is computed again. If no end of text is left, the last block regains the positions that it cut off. With a
    `whole` layout, the answer regains them. Completion flags do not change. Raises ValueError for other positions.
    """
    can = np.zeros(len(branch.tokens), np.bool_)
    for block in branch.active:
        can[block.start : block.end] = True
    if not (can & branch.unmasked)[positions].all():
        raise ValueError(f"received positions {positions}, expected unmasked ones of active blocks")
    if not len(positions):
        return branch
    tokens, unmasked, layout = branch.tokens.copy(), branch.unmasked.copy(), branch.layout
    tokens[positions], unmasked[positions] = context.mask_token, False
    branch = branch.changed(
        tokens=tokens,
        unmasked=unmasked,
        ended=has_end(tokens, unmasked, layout, context.ends),
        logprobs=_with_logprobs(branch.logprobs, positions, np.full(len(positions), np.nan, np.float32)),
    )
    last = branch.blocks[-1]
    if not branch.ended and last.state is BlockState.ACTIVE:
        end = layout.end_of_block(last.start)
        branch = branch.changed(blocks=with_longer_block(branch.blocks, end - last.end))
        # Given text may follow the holes.
        more = 0 if layout.holes else (layout.end if layout.whole else end) - len(tokens)
        branch = with_masks(branch, more, context)
    return branch.changed(blocks=with_counted_masks(branch.blocks, branch.unmasked))


def without_rows_after_end(branch: Branch, ends: tuple[int, ...]) -> Branch:
    """Return `branch` cut off behind its first unmasked end of text, where the answer ends at the latest.

    The last block becomes shorter and later blocks are dropped. Remaining rows no longer attend to dropped rows, so
    confidences change slightly (docs/concepts/decoding.md has the measured effect on score and speed).
    """
    prompt = branch.layout.prompt
    if not has_end(branch.tokens, branch.unmasked, branch.layout, ends):
        return branch
    end = prompt + int(np.argmax(is_end(branch.tokens[prompt:], ends) & branch.unmasked[prompt:])) + 1
    return branch.changed(
        tokens=branch.tokens[:end],
        unmasked=branch.unmasked[:end],
        logprobs=None if branch.logprobs is None else branch.logprobs[:end],
        blocks=tuple(block._replace(end=min(block.end, end)) for block in branch.blocks if block.start < end),
        memory=None if branch.memory is None else branch.memory.before(end),
    )


def unmasked_length(branch: Branch) -> int:
    """Return the number of generated positions before the first masked one."""
    before = branch.masked.searchsorted(branch.layout.prompt)
    first = branch.masked.item(before) if before < len(branch.masked) else len(branch.tokens)
    return first - branch.layout.prompt


def final_length(branch: Branch) -> int:
    """Return `unmasked_length` limited to finished blocks. Remasking and editing may change the other blocks."""
    end = branch.active[0].start if branch.active else len(branch.tokens)
    return min(unmasked_length(branch), max(0, end - branch.layout.prompt))


def is_end(tokens: Int64, ends: tuple[int, ...]) -> Bool:
    """Return which of `tokens` [n] end the answer, [n]."""
    found = np.zeros(tokens.shape, np.bool_)
    for end in ends:
        found |= tokens == end
    return found


def has_end(tokens: Int64, unmasked: Bool, layout: Layout, ends: tuple[int, ...]) -> bool:
    """Return True if the answer has an unmasked end of text."""
    tokens, unmasked = tokens[layout.prompt :], unmasked[layout.prompt :]
    return any(np.count_nonzero((tokens == end) & unmasked) for end in ends)


def with_counted_masks(blocks: Blocks, unmasked: Bool) -> Blocks:
    """Return `blocks` with the masks of active blocks counted again from `unmasked` [positions]."""
    return tuple(
        block._replace(masks=int(np.count_nonzero(~unmasked[block.start : block.end])))
        if block.state is BlockState.ACTIVE
        else block
        for block in blocks
    )


def with_longer_block(blocks: Blocks, more: int) -> Blocks:
    """Return `blocks` with `more` masked positions added to the last block, which is active."""
    last = blocks[-1]
    return (*blocks[:-1], last._replace(end=last.end + more, masks=last.masks + more))


def with_masks(branch: Branch, more: int, context: Context) -> Branch:
    """Return `branch` with `more` masked positions behind its tokens."""
    logprobs = branch.logprobs
    return branch.changed(
        tokens=np.concatenate([branch.tokens, np.full(more, context.mask_token, np.int64)]),
        unmasked=np.concatenate([branch.unmasked, np.zeros(more, np.bool_)]),
        logprobs=None if logprobs is None else np.concatenate([logprobs, np.full(more, np.nan, np.float32)]),
    )


def _with_logprobs(logprobs: Float32 | None, positions: Int64, new: Float32 | None) -> Float32 | None:
    """Return a copy of a branch's `logprobs` with the `new` ones [n] of the tokens at `positions` [n]."""
    if logprobs is None or new is None:
        return logprobs
    written = logprobs.copy()
    written[positions] = new
    return written


def open_span(branch: Branch, block: Block, params: DecodingParams) -> tuple[int, int]:
    """Return the start and end of the positions of an active block that may be unmasked now.

    That is the whole block. With sub-blocks, which are unmasked one after another, it is the first one with a masked
    position, or the last one if none has.
    """
    if params.sub_block >= block.end - block.start:
        return block.start, block.end
    masked = branch.masked[branch.masked.searchsorted(block.start) :]
    inside = min(int(masked[0]) if len(masked) else block.end, block.end - 1) - block.start
    start = block.start + inside // params.sub_block * params.sub_block
    return start, min(start + params.sub_block, block.end)


def open_among(branch: Branch, positions: Int64, params: DecodingParams) -> Bool:
    """Return which of `positions` [n], ascending, are masked and may be unmasked now, [n]. Positions behind the branch
    are False."""
    found = np.zeros(len(branch.tokens), np.bool_)
    for block in branch.active:
        found[slice(*open_span(branch, block, params))] = True
    return _flags_at(found & ~branch.unmasked, positions)


def masked_among(branch: Branch, positions: Int64) -> Bool:
    """Return which of `positions` [n], ascending, are masked, [n]. Positions behind the branch are False."""
    return _flags_at(~branch.unmasked, positions)


def _flags_at(flags: Bool, positions: Int64) -> Bool:
    result = np.zeros(len(positions), np.bool_)
    inside = positions.searchsorted(len(flags))
    result[:inside] = flags[positions[:inside]]
    return result


def answer_of_branch(
    branch: Branch, ends: tuple[int, ...], generated_positions: int, *, finished_blocks: bool = False
) -> AnswerState:
    """Return the answer of the anchor `branch`, with `generated_positions` and its stop_reason."""
    start, count, final = branch.layout.prompt, len(branch.tokens), unmasked_length(branch)
    certain = final_length(branch) if finished_blocks else final
    reason: StopReason | None = "length" if start + certain == count >= branch.layout.end else None
    if branch.ended:
        length = length_to_end(branch.tokens[start : start + final], ends)
        final, reason = (final, reason) if length is None else (length, "eos" if length <= certain else None)
    return AnswerState(
        branch.tokens, branch.unmasked, start, count, final, reason, generated_positions, branch.logprobs
    )


def length_to_end(ids: Int64, ends: tuple[int, ...]) -> int | None:
    """Return the number of `ids` up to the first one of `ends`, which is included, or None without one."""
    found = is_end(ids, ends)
    return int(found.argmax()) + 1 if found.any() else None


def stop_reason(branch: Branch, ends: tuple[int, ...], *, finished_blocks: bool = False) -> StopReason | None:
    """Return why `branch` is finished, or None if it is not. With `finished_blocks` only text of such blocks counts."""
    return answer_of_branch(branch, ends, 0, finished_blocks=finished_blocks).stop_reason
