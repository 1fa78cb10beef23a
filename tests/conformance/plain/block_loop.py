"""SDAR's rules, which are Stable-DiffCoder's too, written out plainly over a network of transformers, in float64.

Every step computes everything up to the end of its block anew, block-causal from position 0, without a cache.
"""

from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import torch
from tests.conformance.plain.sliding_loop import logits_of_rows

Rule = Literal["dynamic", "static", "sequential"]


@dataclass(frozen=True)
class PlainFills:
    """What a step wrote."""

    fills: dict[int, int]
    """Tokens by position, rising."""
    margin: float
    """How far the closest of its choices was from another one."""


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
) -> tuple[list[int], list[PlainFills]]:
    """The answer, in reference mode to the end of its last block, and the steps.

    `steps` of equal size for a block; None: at least one position a step. Published: where too few masks are left for a
    step's share the best of all rows are written, decided ones too; blocks are whole; the mask may be proposed.
    """
    total = len(prompt) + new
    if reference:
        total = -(-total // block) * block
    ids: list[int | None] = [*prompt, *[None] * (total - len(prompt))]
    found: list[PlainFills] = []
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
            chosen, margins = _chosen(cells, best.values[:, 0], rule, threshold, share, reference)
            margins += [float(best.values[i, 0] - best.values[i, 1]) for i in chosen]
            written = {start + i: int(best.indices[i, 0]) for i in sorted(chosen)}
            for position, token in written.items():
                ids[position] = None if token == mask else token
            found.append(PlainFills(written, min(margins)))
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
    """Whether all before the first end is decided."""
    return end in answer and None not in answer[: answer.index(end)]


def _chosen(
    cells: list[int | None], sure: torch.Tensor, rule: Rule, threshold: float, share: int, reference: bool
) -> tuple[list[int], list[float]]:
    """Rows of a block to write, and how far each choice was from another one."""
    undecided = torch.tensor([cell is None for cell in cells])
    if rule == "sequential":
        return undecided.nonzero()[:share, 0].tolist(), []
    masked = torch.where(undecided, sure, -torch.inf)
    margins = []
    if rule == "dynamic":
        above = (masked > threshold).nonzero()[:, 0].tolist()
        margins += (sure[undecided] - threshold).abs().tolist()
        if len(above) >= share:
            return above, margins
    if not reference:
        share = min(share, int(undecided.sum()))
    ordered = sure[undecided].sort(descending=True).values
    margins += (ordered[:-1] - ordered[1:])[: share + 1].tolist()
    # In float32, as the reference code has it: which of equal values topk takes depends on the type's loop.
    return masked.float().topk(min(share, len(cells))).indices.tolist(), margins
