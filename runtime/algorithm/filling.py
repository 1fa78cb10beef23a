"""Filling the winner's undecided positions (docs/lopa.md, section 5 and 6 H), and cutting off needless ones. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.algorithm.blocks import active
from lopa.runtime.algorithm.branches import Branch, with_logprobs
from lopa.runtime.algorithm.candidates import Candidates
from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig


@dataclass(frozen=True)
class Fills:
    """What a round filled, block by block in the order of positions."""

    chosen: Bool
    """[undecided positions before the fill]"""
    positions: Int64
    tokens: Int64
    logprobs: Float32 | None = None


def fills_from_candidates(branch: Branch, undecided: Int64, candidates: Candidates, config: GenerationConfig) -> Fills:
    """Per active block: every position above the threshold; else, in a complete block, the most confident one.

    `undecided` [n] ascending and `candidates` [n] speak of the branch's undecided positions.
    """
    chosen = candidates.probabilities > np.float32(config.fill_threshold)
    for block in active(branch.blocks):
        first, last = np.searchsorted(undecided, (block.start, block.end))
        if block.complete and last > first and not chosen[first:last].any():
            chosen[first + np.argmax(candidates.confidences[first:last])] = True
    taken = candidates[chosen]
    return Fills(chosen, undecided[chosen], taken.tokens, taken.logprobs)


def filled(branch: Branch, fills: Fills, *, mask_token: int, eos_token: int | None) -> Branch:
    """`branch` with the fills written. A position "filled" with the mask token stays undecided (quirk 3)."""
    tokens, decided = branch.tokens.copy(), branch.decided.copy()
    tokens[fills.positions] = fills.tokens
    decided[fills.positions] = fills.tokens != mask_token
    return replace(
        branch,
        tokens=tokens,
        decided=decided,
        ended=branch.ended or bool((fills.tokens == eos_token).any()),
        logprobs=with_logprobs(branch.logprobs, fills.positions, fills.logprobs),
    )


def without_rows_after_end(branch: Branch, eos_token: int) -> Branch:
    """`branch` up to its first decided end-of-text: whatever stands before it, the answer ends there at the latest.

    The last block becomes shorter, later ones go. What is left no longer sees the rows that went, so confidences
    change a little (docs/decoding.md has the measured effect on score and speed).
    """
    prompt_length = branch.blocks[0].end
    found = (branch.tokens[prompt_length:] == eos_token) & branch.decided[prompt_length:]
    if not found.any():
        return branch
    end = prompt_length + int(np.argmax(found)) + 1
    return replace(
        branch,
        tokens=branch.tokens[:end],
        decided=branch.decided[:end],
        logprobs=None if branch.logprobs is None else branch.logprobs[:end],
        blocks=tuple(replace(block, end=min(block.end, end)) for block in branch.blocks if block.start < end),
    )
