"""Where an answer ends: its ids up to an end-of-text, and why nothing is left to do for it. Pure."""

from typing import Literal

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.branches import Branch, decided_length, is_end, nothing_left

StopReason = Literal["eos", "length", "stop_string", "time_limit", "step_limit", "cancelled"]


def answer_ids(branch: Branch, length: int, ends: tuple[int, ...]) -> Int64:
    """The first generated ids, so many or up to and including one of `ends`."""
    first = branch.layout.prompt
    ids = branch.tokens[first : first + length]
    found = is_end(ids, ends)
    return ids[: int(np.argmax(found)) + 1] if found.any() else ids


def end_of(branch: Branch, ends: tuple[int, ...]) -> StopReason | None:
    """Why nothing is left to do for `branch`; None: something is."""
    length, first = decided_length(branch), branch.layout.prompt
    if is_end(branch.tokens[first : first + length], ends).any():
        return "eos"
    whole = first + length == len(branch.tokens) and len(branch.tokens) >= branch.layout.end
    return "length" if whole else None


def end_as_published(
    branches: tuple[Branch, ...], steps: int, config: GenerationConfig, *, mask_token: int, ends: tuple[int, ...]
) -> StopReason | None:
    """As `end_of`, in published mode, behind so many `steps`: of prepared branches, the anchor last."""
    if all(nothing_left(branch, config, mask_token) for branch in branches):
        anchor = branches[-1]
        return "eos" if is_end(answer_ids(anchor, decided_length(anchor), ends), ends).any() else "length"
    return "step_limit" if steps >= config.step_limit else None
