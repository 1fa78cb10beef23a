"""WeDLM's and Stable-DiffCoder's loops written out plainly over networks of transformers, in float64.

From what is known of the published code (docs/models.md), without a cache, blocks or branches: every step computes the
whole sequence anew under the mask that the family's attention says. Nothing of ours is used.
"""

from dataclasses import dataclass
from typing import Any

import torch

NEAR_TIE = 1e-4
"""A choice that is closer than this may be made the other way in float32."""


@dataclass(frozen=True)
class PlainStep:
    """What a step decided."""

    rows: list[int]
    """Positions of the rows behind what was committed before, in the order in which they see each other."""
    committed: int
    """How many of the first of these are committed."""
    fills: dict[int, int]
    """Tokens by position."""
    margin: float
    """How far the closest of its choices was from another one."""
    keys: torch.Tensor
    """[heads, positions, head size], those of the last layer for what is committed after this step."""


def logits_of_rows(network: Any, ids: list[int], positions: list[int], allowed: torch.Tensor) -> tuple[Any, Any]:
    """Of every row [W, V], and the cache that transformers filled; `allowed` [W, W]: which row sees which."""
    mask = torch.zeros(allowed.shape, dtype=network.dtype).masked_fill_(~allowed, torch.finfo(network.dtype).min)
    with torch.no_grad():
        answer = network(
            input_ids=torch.tensor([ids]),
            position_ids=torch.tensor([positions]),
            attention_mask=mask[None, None],
            use_cache=True,
        )
    return answer.logits[0], answer.past_key_values


def keys_of_causal_pass(network: Any, ids: list[int]) -> torch.Tensor:
    """[heads, positions, head size], of the last layer in one autoregressive pass over `ids`."""
    _, cache = logits_of_rows(network, ids, list(range(len(ids))), torch.ones(len(ids), len(ids)).tril().bool())
    keys: torch.Tensor = cache.layers[-1].keys[0]
    return keys


def wedlm(  # noqa: PLR0913
    network: Any,
    prompt: list[int],
    *,
    new: int,
    mask: int,
    end: int,
    window: int = 16,
    threshold: float = 0.4,
    penalty: float = 0.02,
    cut: bool = True,
) -> tuple[list[int], list[PlainStep]]:
    """The answer up to its end, and the steps. `cut`: what stands behind a decided end leaves the window."""
    text = list(prompt)  # committed
    cells: list[int | None] = []  # behind it; None is a mask
    total = len(prompt) + new
    steps: list[PlainStep] = []
    ended = False
    while True:
        run = next((i for i, cell in enumerate(cells) if cell is None), len(cells))
        answer = text[len(prompt) :] + [cell for cell in cells[:run] if cell is not None]
        if end in answer:
            return answer[: answer.index(end) + 1], steps
        if len(answer) == new:
            return answer, steps
        if not ended:
            cells += [None] * (min(len(text) + run + window, total) - len(text) - len(cells))
        decided = [i for i, cell in enumerate(cells) if cell is not None]
        masks = [i for i, cell in enumerate(cells) if cell is None]
        order = decided + masks
        ids = text + [mask if cells[i] is None else cells[i] for i in order]  # type: ignore[misc]
        positions = [*range(len(text)), *(len(text) + i for i in order)]
        logits, cache = logits_of_rows(network, ids, positions, torch.ones(len(ids), len(ids)).tril().bool())
        own = logits[len(text) + len(decided) :]
        entropy = torch.distributions.Categorical(logits=own).entropy()
        scores = entropy + penalty * (torch.tensor(masks) - masks[0])
        own[:, mask] = -torch.inf
        best = own.topk(2, dim=-1)
        chosen = (scores < threshold).nonzero()[:, 0].tolist()
        margin = float((scores - threshold).abs().min())
        if not chosen:
            chosen = [int(scores.argmin())]
            two = scores.sort().values[:2]
            margin = min(margin, float(two[-1] - two[0]) if len(two) > 1 else margin)
        margin = min(margin, *((best.values[i, 0] - best.values[i, 1]).item() for i in chosen))
        fills = {len(text) + masks[i]: int(best.indices[i, 0]) for i in chosen}
        for position, token in fills.items():
            cells[position - len(text)] = token
        keys = cache.layers[-1].keys[0, :, : len(text) + run]
        steps.append(PlainStep(positions[len(text) :], run, dict(sorted(fills.items())), margin, keys))
        ended = ended or end in fills.values()
        if cut and end in cells:
            cells = cells[: cells.index(end) + 1]
        text += [cell for cell in cells[:run] if cell is not None]
        cells = cells[run:]
