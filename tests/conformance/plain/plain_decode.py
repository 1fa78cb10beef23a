"""Rules that decide one block at a time, written plainly, over what a plain network says by a cache's definition."""

from collections.abc import Callable

import numpy as np
from tests.conformance.plain.plain_caches import PlainCaches, Setting, State
from tests.conformance.plain.plain_network import Array, PlainNetwork

Rule = Callable[[Array], tuple[list[int], float]]
"""Of the probabilities of a block's masked positions, ascending: which to write, and how far another choice was."""


def best(number: int) -> Rule:
    """The so many most probable."""

    def chosen(sure: Array) -> tuple[list[int], float]:
        order = np.argsort(-sure, kind="stable")
        gaps = -np.diff(sure[order])
        return sorted(order[:number].tolist()), float(gaps[number - 1]) if number <= len(gaps) else np.inf

    return chosen


def above(threshold: float) -> Rule:
    """All above it, at least the best."""

    def chosen(sure: Array) -> tuple[list[int], float]:
        close = float(np.abs(sure - threshold).min())
        found = np.flatnonzero(sure > threshold).tolist()
        if found:
            return found, close
        one, gap = best(1)(sure)
        return one, min(close, gap)

    return chosen


def first(sure: Array) -> tuple[list[int], float]:
    """The first."""
    return [0], np.inf


def plain_decode(
    network: PlainNetwork, setting: Setting, prompt: list[int], rule: Rule, *, new: int, mask: int
) -> tuple[list[int], float]:
    """The answer, and how far the closest of its choices was from another one.

    Without end-of-text. Where blocks are counted from position 0 and a row predicts the next position, the last row of
    what is finished gives a block's first token, whatever its probability (Fast-dLLM v2).
    """
    length = len(prompt) + new
    state = State(np.array([*prompt, *[mask] * new]), np.arange(length) < len(prompt))
    caches, closest = PlainCaches(network, setting), np.inf
    hands_over = setting.alignment == "absolute" and setting.shift == 1
    whole = setting.cache != "blocks"
    while not state.decided.all():
        masked = np.flatnonzero(~state.decided)
        start, end = setting.block_around(int(masked[0]), length)
        given = hands_over and masked[0] == start
        # Exact caches see nothing behind their block; what a model that sees everything says depends on the end.
        seen = length if whole else start if given else end
        said = caches.said([State(state.tokens[:seen], state.decided[:seen])], None, 0)[0]
        asked = masked[:1] if given else masked[masked < end]
        logits = said[asked]
        logits[:, mask] = -np.inf
        ordered = np.sort(np.exp(logits - _summed(said[asked])), axis=1)
        chosen, margin = ([0], np.inf) if given else rule(ordered[:, -1])
        closest = min(closest, margin, *(ordered[chosen, -1] - ordered[chosen, -2]))
        state.tokens[asked[chosen]] = logits[chosen].argmax(axis=1)
        state.decided[asked[chosen]] = True
    return state.tokens[len(prompt) :].tolist(), float(closest)


def _summed(logits: Array) -> Array:
    upper = logits.max(axis=1, keepdims=True)
    return upper + np.log(np.exp(logits - upper).sum(axis=1, keepdims=True))
