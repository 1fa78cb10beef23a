"""Plain rules that unmask one block at a time, over a plain network with a cache's definition."""

from collections.abc import Callable

import numpy as np
from tests.conformance.plain.plain_caches import PlainCaches, Setting, State
from tests.conformance.plain.plain_network import Array, PlainNetwork

Rule = Callable[[Array], tuple[list[int], float]]
"""Function from the probabilities of a block's masked positions, ascending, to positions to write and the margin."""


def best(number: int) -> Rule:
    """Return the rule that writes the `number` most probable positions."""

    def chosen(probabilities: Array) -> tuple[list[int], float]:
        order = np.argsort(-probabilities, kind="stable")
        gaps = -np.diff(probabilities[order])
        return sorted(order[:number].tolist()), float(gaps[number - 1]) if number <= len(gaps) else np.inf

    return chosen


def above(threshold: float) -> Rule:
    """Return the rule that writes all positions above the threshold, or the best if there is none."""

    def chosen(probabilities: Array) -> tuple[list[int], float]:
        close = float(np.abs(probabilities - threshold).min())
        found = np.flatnonzero(probabilities > threshold).tolist()
        if found:
            return found, close
        one, gap = best(1)(probabilities)
        return one, min(close, gap)

    return chosen


def first(probabilities: Array) -> tuple[list[int], float]:
    """Return the rule that writes the first position."""
    return [0], np.inf


def plain_decode(
    network: PlainNetwork, setting: Setting, prompt: list[int], rule: Rule, *, new: int, mask: int
) -> tuple[list[int], float]:
    """Return the answer, and the margin of its closest choice.

    End of text does not matter. With absolute alignment and rows that predict the next position, the last
    finished row gives a block's first token at any probability (Fast-dLLM v2).
    """
    length = len(prompt) + new
    state = State(np.array([*prompt, *[mask] * new]), np.arange(length) < len(prompt))
    caches, closest = PlainCaches(network, setting), np.inf
    hands_over = setting.alignment == "absolute" and setting.shift == 1
    whole = setting.cache != "blocks"
    while not state.unmasked.all():
        masked = np.flatnonzero(~state.unmasked)
        start, end = setting.block_around(int(masked[0]), length)
        given = hands_over and masked[0] == start
        # Exact caches see nothing behind their block. For other models the statistics depend on the end.
        seen = length if whole else start if given else end
        predicted = caches.logits([State(state.tokens[:seen], state.unmasked[:seen])], None, 0)[0]
        sampled = masked[:1] if given else masked[masked < end]
        logits = predicted[sampled]
        logits[:, mask] = -np.inf
        ordered = np.sort(np.exp(logits - _summed(predicted[sampled])), axis=1)
        chosen, margin = ([0], np.inf) if given else rule(ordered[:, -1])
        closest = min(closest, margin, *(ordered[chosen, -1] - ordered[chosen, -2]))
        state.tokens[sampled[chosen]] = logits[chosen].argmax(axis=1)
        state.unmasked[sampled[chosen]] = True
    return state.tokens[len(prompt) :].tolist(), float(closest)


def _summed(logits: Array) -> Array:
    upper = logits.max(axis=1, keepdims=True)
    return upper + np.log(np.exp(logits - upper).sum(axis=1, keepdims=True))
