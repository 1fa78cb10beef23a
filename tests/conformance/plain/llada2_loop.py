"""LLaDA2.0's and 2.1's rules in plain float64 code over a plain network.

Every pass computes everything up to the end of its block again, block-causal from position 0, without a cache.
"""

from dataclasses import dataclass, field

import numpy as np
from tests.conformance.plain.plain_network import Array, PlainNetwork


@dataclass(frozen=True)
class Rules:
    """The options of a decode."""

    block: int
    new: int
    threshold: float
    steps: int
    """Maximum number of steps per block, without editing."""
    editing: float | None
    """Threshold of edits; None for LLaDA2.0."""
    limit: int
    reference: bool
    early: bool = False
    """eos_early_stop of the published code."""


@dataclass(frozen=True)
class PlainPass:
    """The changes of one pass."""

    written: dict[int, int]
    edited: dict[int, tuple[int, int]]
    """Old and new token by position."""
    margin: float
    """Margin of the closest choice."""


@dataclass
class PlainDecode:
    answer: list[int] = field(default_factory=list)
    passes: list[PlainPass] = field(default_factory=list)
    left_by_limit: list[int] = field(default_factory=list)
    """Starts of the blocks that were left at the limit."""


def llada2(network: PlainNetwork, prompt: list[int], rules: Rules, *, mask: int, end: int) -> PlainDecode:
    """Decode by the rules of LLaDA2.0, or by those of 2.1 with `editing`.

    The default mode never proposes the mask and cuts the last block at the answer's end. It stops as soon as everything
    before an end of text is final.
    """
    found, size, total = PlainDecode(), rules.block, len(prompt) + rules.new
    if rules.reference:
        total = -(-total // size) * size
    ids: list[int | None] = [*prompt, *[None] * (total - len(prompt))]
    for start in range(len(prompt) // size * size, total, size):
        stop = min(start + size, total)
        number = full = 0
        while True:
            was_full = None not in ids[start:stop]
            if was_full and (rules.editing is None or full >= rules.limit):
                if rules.editing is not None and full:
                    found.left_by_limit.append(start)
                break
            full += was_full
            made = _pass(network, ids[:stop], start, number, len(prompt), rules, mask)
            number += 1
            for position, token in made.written.items():
                ids[position] = token
            for position, (_, token) in made.edited.items():
                ids[position] = token
            found.passes.append(made)
            if rules.editing is None and _stops_inside(ids, made, len(prompt), rules, end):
                first = ids.index(end) if rules.reference else ids.index(end, len(prompt))
                found.answer = [each for each in ids[len(prompt) : first + 1] if each is not None]
                return found
            if was_full and not made.edited:
                break
        if end in ids[len(prompt) : stop] and (rules.editing is None or rules.early or not rules.reference):
            break
    answer = [each for each in ids[len(prompt) : len(prompt) + rules.new] if each is not None]
    found.answer = answer[: answer.index(end) + 1] if end in answer else answer
    return found


def _stops_inside(ids: list[int | None], made: PlainPass, prompt: int, rules: Rules, end: int) -> bool:
    """Return True if the loop of LLaDA2.0 stops before its block is full."""
    if rules.reference:
        if not rules.early or end not in made.written.values():
            return False
        return None not in ids[prompt : ids.index(end)]
    return end in ids[prompt:] and None not in ids[prompt : ids.index(end, prompt)]


def _pass(
    network: PlainNetwork, ids: list[int | None], start: int, number: int, prompt: int, rules: Rules, mask: int
) -> PlainPass:
    """Return the changes of a block's pass number `number`, from 0."""
    positions = np.arange(len(ids))
    sees = positions[:, None] // rules.block >= positions // rules.block
    logits, _ = network.rows(np.array([mask if each is None else each for each in ids]), positions, sees)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Array = raised / raised.sum(axis=1, keepdims=True)
    if not rules.reference:
        probabilities[:, mask] = 0
    best, p = probabilities.argmax(axis=1), probabilities.max(axis=1)
    gaps = np.diff(np.sort(probabilities, axis=1)[:, -2:], axis=1)[:, 0]
    masked = [at for at in range(start, len(ids)) if ids[at] is None]
    least = 1
    if rules.editing is None:
        least = rules.block // rules.steps + (number < rules.block % rules.steps)
    taken = [at for at in masked if p[at] > rules.threshold]
    margins = [abs(p[at] - rules.threshold) for at in masked]
    if len(taken) < least:
        order = sorted(masked, key=lambda at: (-p[at], at))
        taken = order[:least]
        margins += [p[a] - p[b] for a, b in zip(order[least - 1 :], order[least : least + 1], strict=False)]
    edited = {}
    for at in range(max(start, prompt), len(ids)):
        old = ids[at]
        if rules.editing is None or old is None:
            continue
        margins.append(gaps[at])
        if best[at] != old:
            margins.append(abs(p[at] - rules.editing))
            if p[at] > rules.editing:
                edited[at] = (old, int(best[at]))
    margins += [gaps[at] for at in taken]
    return PlainPass({at: int(best[at]) for at in sorted(taken)}, edited, float(min(margins, default=1.0)))
