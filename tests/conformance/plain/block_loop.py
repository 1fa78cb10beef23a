"""SDAR's rules, also Stable-DiffCoder's, in plain float64 code over a network of transformers.

Every step computes everything up to the end of its block again, block-causal from position 0, without a cache.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import torch
from tests.conformance.plain.sliding_loop import logits_of_rows

Rule = Literal["dynamic", "static", "sequential"]


@dataclass(frozen=True)
class PlainStep:
    """The tokens that a step wrote."""

    written: dict[int, int]
    """Tokens by position, ascending."""
    margin: float
    """Margin of the closest choice."""


def block_diffusion(
    network: Any,
    prompt: list[int],
    *,
    rule: Rule,
    block: int,
    steps: int | None,
    threshold: float,
    new: int,
    mask: int,
    end: int,
    reference: bool,
) -> tuple[list[int], list[PlainStep]]:
    """Return the answer, in reference mode to the end of its last block, and the steps.

    A block takes `steps` equal steps. With None each step writes at least one position. In reference mode a step
    with too few masked positions writes the best of all rows, unmasked ones included. Blocks are then fully activated,
    and the mask may be proposed.
    """
    total = len(prompt) + new
    if reference:
        total = -(-total // block) * block
    ids: list[int | None] = [*prompt, *[None] * (total - len(prompt))]
    found: list[PlainStep] = []
    for start in range(len(prompt) // block * block, total, block):
        stop = min(start + block, total)
        for number in count():
            cells = ids[start:stop]
            if None not in cells:
                break
            share = 1
            if steps is not None:
                share = max(1, block // steps + (number < block % steps))
            positions = torch.arange(stop) // block
            allowed = positions[:, None] >= positions[None, :]
            logits, _ = logits_of_rows(
                network, [mask if each is None else each for each in ids[:stop]], list(range(stop)), allowed
            )
            own = logits[start:stop]
            if not reference:
                own[:, mask] = -torch.inf
            best = own.softmax(-1).topk(2, dim=-1)
            chosen, margins = _choose(cells, best.values[:, 0], rule, threshold, share, reference)
            margins += [float(best.values[i, 0] - best.values[i, 1]) for i in chosen]
            written = {start + i: int(best.indices[i, 0]) for i in sorted(chosen)}
            for position, token in written.items():
                ids[position] = None if token == mask else token
            found.append(PlainStep(written, min(margins)))
            if not reference and _is_over(ids[len(prompt) :], end):
                break
        answer = ids[len(prompt) : stop]
        if end in answer:
            if reference:
                return [token for token in answer if token is not None], found
            if _is_over(answer, end):
                return [token for token in answer[: answer.index(end) + 1] if token is not None], found
    return [token for token in ids[len(prompt) :] if token is not None], found


def _is_over(answer: list[int | None], end: int) -> bool:
    """Return True if everything before the first end is unmasked."""
    return end in answer and None not in answer[: answer.index(end)]


def _choose(
    cells: list[int | None], confidences: torch.Tensor, rule: Rule, threshold: float, share: int, reference: bool
) -> tuple[list[int], list[float]]:
    """Return the rows of a block to write, and the margin of each choice."""
    is_masked = torch.tensor([cell is None for cell in cells])
    if rule == "sequential":
        return is_masked.nonzero()[:share, 0].tolist(), []
    masked = torch.where(is_masked, confidences, -torch.inf)
    margins = []
    if rule == "dynamic":
        above = (masked > threshold).nonzero()[:, 0].tolist()
        margins += (confidences[is_masked] - threshold).abs().tolist()
        if len(above) >= share:
            return above, margins
    if not reference:
        share = min(share, int(is_masked.sum()))
    ordered = confidences[is_masked].sort(descending=True).values
    margins += (ordered[:-1] - ordered[1:])[: share + 1].tolist()
    # float32 as in the published code, since the choice among equal values in topk depends on the type.
    return masked.float().topk(min(share, len(cells))).indices.tolist(), margins
