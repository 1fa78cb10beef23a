"""A branch: one hypothesis of the sequence, and its bookkeeping between rounds (docs/lopa.md, sections 4 and 6).

Pure functions of numpy arrays; knows no device.
"""

from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.algorithm.blocks import Blocks, active, prompt_block, to_cache, with_complete_flags, with_new_block
from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The token that a lookahead branch wrote ahead of its verification; rank 0 was the most confident."""

    rank: int
    position: int
    token: int
    confidence: float
    logprob: float | None = None
    """Only where they are asked for."""


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
    logprobs: Float32 | None = None
    """[positions], of the decided tokens as the model said when it proposed them, else NaN; None: not asked for."""


def branch_from_prompt(prompt: Int64, *, cached: bool = False, with_logprobs: bool = False) -> Branch:
    """The anchor before the first round: the prompt alone, its rows `cached` already or not. `prompt` [length]."""
    block = prompt_block(len(prompt), cached=cached)
    logprobs = np.full(len(prompt), np.nan, np.float32) if with_logprobs else None
    return Branch(prompt, np.ones(len(prompt), np.bool_), (block,), ended=False, lookahead=None, logprobs=logprobs)


def prepared(branch: Branch, config: GenerationConfig, mask_token: int) -> Branch:
    """`branch` at the start of a round: at most one block added, completion flags set (section 4, points 1 and 2)."""
    blocks, tokens, decided, logprobs = branch.blocks, branch.tokens, branch.decided, branch.logprobs
    size = size_of_next_block(branch, blocks[-1].progress, config)
    if size:
        blocks = with_new_block(blocks, size)
        tokens = np.concatenate([tokens, np.full(size, mask_token, np.int64)])
        decided = np.concatenate([decided, np.zeros(size, np.bool_)])
        if logprobs is not None:
            logprobs = np.concatenate([logprobs, np.full(size, np.nan, np.float32)])
    return replace(
        branch,
        tokens=tokens,
        decided=decided,
        blocks=with_complete_flags(blocks, config.decoded_token_threshold),
        logprobs=logprobs,
    )


def branches_to_verify(branches: tuple[Branch, ...], config: GenerationConfig, mask_token: int) -> tuple[Branch, ...]:
    """The `branches` of a round, prepared for it; outside the published behaviour a whole one goes on alone.

    A branch with nothing left to decide would win the next round whatever the others do, and fill nothing.
    """
    ready = tuple(prepared(branch, config, mask_token) for branch in branches)
    if config.published:
        return ready
    whole = [branch for branch in ready if branch.decided.all() and len(branch.blocks) > 1]
    return (whole[0],) if whole else ready


def with_logprobs(logprobs: Float32 | None, positions: Int64 | int, said: Float32 | float | None) -> Float32 | None:
    """A copy of a branch's `logprobs` with those `said` of the tokens written at `positions`."""
    if logprobs is None or said is None:
        return logprobs
    written = logprobs.copy()
    written[positions] = said
    return written


def size_of_next_block(branch: Branch, progress: float, config: GenerationConfig) -> int:
    """Positions of the block to open when the last block's decided share is `progress`; 0 when none is to be."""
    generated = len(branch.blocks) - 1
    if generated == config.block_count or branch.ended or progress < config.add_threshold:
        return 0
    return config.block_length(generated)


def nothing_left(branch: Branch, config: GenerationConfig, mask_token: int) -> bool:
    """True when a prepared branch needs no further round (section 4, point 3).

    The published loop also looks for the mask token in the prompt, and then caches the last block once more (quirk 4).
    """
    if active(branch.blocks):
        return False
    prompt_end = branch.blocks[0].end
    recache = config.published and bool((branch.tokens[:prompt_end] == mask_token).any())
    return not (recache and to_cache(branch.blocks))


def committed_length(branch: Branch) -> int:
    """Generated positions that can no longer change: those before the first undecided one."""
    generated = branch.decided[branch.blocks[0].end :]
    return len(generated) if generated.all() else int(np.argmin(generated))
