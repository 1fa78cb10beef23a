"""Rows that cannot matter any more leave the window. Pure; outside the published behaviour."""

from dataclasses import replace

import numpy as np

from lopa.runtime.algorithm.branches import Branch


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
