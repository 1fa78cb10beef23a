"""WeDLM's loop in plain float64 code.

It is written from the known properties of the published code (docs/how-to/export.md), without a cache. Every step
computes the whole sequence again, causal in the order of its rows. It uses no code of the product.
"""

from dataclasses import dataclass

import numpy as np
from tests.conformance.plain.plain_network import Array, PlainNetwork

NEAR_TIE = 1e-4
"""Margin below which float32 may choose differently."""


@dataclass(frozen=True)
class PlainStep:
    """The choices of a step."""

    rows: list[list[int]]
    """Positions of each hypothesis's rows behind the committed ones, in the order of their causal attention."""
    winner: int
    committed: int
    """Number of leading rows that are committed."""
    written: dict[int, int]
    """Tokens by position."""
    margin: float
    """Margin of the closest choice."""


@dataclass
class _Hypothesis:
    """Tokens behind the committed text; None for masked positions."""

    cells: list[int | None]
    ended: bool = False

    @property
    def run(self) -> int:
        return next((i for i, cell in enumerate(self.cells) if cell is None), len(self.cells))


@dataclass
class _Statistics:
    """The network's statistics of a hypothesis."""

    order: list[int]
    masks: list[int]
    scores: Array
    """[masks]: scores."""
    tokens: list[int]
    """[masks]: best token."""
    margins: list[float]
    """[masks]: margin between the best token and the next."""


def wedlm(
    network: PlainNetwork,
    prompt: list[int],
    *,
    new: int,
    mask: int,
    end: int,
    window: int = 16,
    threshold: float = 0.4,
    penalty: float = 0.02,
    cut: bool = True,
    lookaheads: int = 0,
) -> tuple[list[int], list[PlainStep]]:
    """Return the answer up to its end, and the steps.

    With `cut`, positions behind an unmasked end leave the window. `lookaheads` is the number of hypotheses that have an
    unverified token. One more hypothesis has none. The lowest mean score wins, or a hypothesis with nothing masked.
    """
    text = list(prompt)  # committed
    total = len(prompt) + new
    steps: list[PlainStep] = []
    live = [_Hypothesis([])]
    run = 0  # positions unmasked in all hypotheses
    while True:
        _add_masks(live, min(run + window, total - len(text)))
        whole = [each for each in live if each.cells and None not in each.cells]
        if whole:
            live, run = whole[:1], len(whole[0].cells)
            _add_masks(live, min(run + window, total - len(text)))
        last = live[-1]
        answer = text[len(prompt) :] + [cell for cell in last.cells[: last.run] if cell is not None]
        if end in answer:
            return answer[: answer.index(end) + 1], steps
        if len(answer) == new:
            return answer, steps
        looks = [_look(network, text, each.cells, mask, penalty) for each in live]
        means = np.array([each.scores.mean() for each in looks])
        winner = int(means.argmin())
        seen, cells, ended = looks[winner], list(live[winner].cells), live[winner].ended
        margins = [*_distances(means), float(np.abs(seen.scores - threshold).min())]
        chosen = np.flatnonzero(seen.scores < threshold).tolist()
        if not chosen:
            chosen = [int(seen.scores.argmin())]
            margins += _distances(seen.scores)
        written = {len(text) + seen.masks[i]: seen.tokens[i] for i in chosen}
        for i in chosen:
            cells[seen.masks[i]] = seen.tokens[i]
        ended = ended or end in written.values()
        if cut and end in cells:
            cells = cells[: cells.index(end) + 1]
        left = [
            i for i in np.argsort(seen.scores, kind="stable").tolist() if i not in chosen and seen.masks[i] < len(cells)
        ]
        ahead = left[:lookaheads]
        if lookaheads:
            margins += _distances(seen.scores[left])
        margins += [seen.margins[i] for i in (*chosen, *ahead)]
        rows = [[len(text) + i for i in look.order] for look in looks]
        steps.append(PlainStep(rows, winner, run, dict(sorted(written.items())), min(margins)))
        text += [cell for cell in cells[:run] if cell is not None]
        live = []
        for i in ahead:
            more = _Hypothesis(cells[run:], ended or seen.tokens[i] == end)
            more.cells[seen.masks[i] - run] = seen.tokens[i]
            live.append(more)
        live.append(_Hypothesis(cells[run:], ended))
        run = live[-1].run


def _add_masks(live: list[_Hypothesis], length: int) -> None:
    """Extend each hypothesis to `length` cells, unless it has an end."""
    for each in live:
        if not each.ended:
            each.cells += [None] * (length - len(each.cells))


def _look(network: PlainNetwork, text: list[int], cells: list[int | None], mask: int, penalty: float) -> _Statistics:
    known = [i for i, cell in enumerate(cells) if cell is not None]
    masks = [i for i, cell in enumerate(cells) if cell is None]
    order = known + masks
    ids = text + [mask if cells[i] is None else cells[i] for i in order]
    positions = [*range(len(text)), *(len(text) + i for i in order)]
    logits, _ = network.rows(np.array(ids), np.array(positions), np.tri(len(ids), dtype=bool))
    own = logits[len(text) + len(known) :]
    shares = np.exp(own - own.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(axis=1)
    own[:, mask] = -np.inf
    best = np.sort(own, axis=1)
    return _Statistics(
        order,
        masks,
        entropy + penalty * (np.array(masks) - masks[0]),
        own.argmax(axis=1).tolist(),
        (best[:, -1] - best[:, -2]).tolist(),
    )


def _distances(values: Array) -> list[float]:
    """Return the distances between adjacent sorted values."""
    return np.diff(np.sort(values)).tolist()
