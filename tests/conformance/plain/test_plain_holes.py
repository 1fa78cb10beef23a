"""Holes are filled as by a plain loop in float64 that computes the whole sequence in every round.

Random networks with every family's layers and both shifts, random holes, both orders and several rules.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance.plain.plain_network import Array, PlainNetwork
from tests.conformance.plain.test_plain_caches import LAYERS, MASK, TOLERANCE, Model, probabilities, random_model
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.decoding.growing_holes import hole_filling
from lopa.runtime.options.hole_params import params_for_holes
from lopa.runtime.text.encoded_holes import EncodedHoles, Span

Rule = Callable[[Array], tuple[list[int], float]]
"""Function from the probabilities of a block's masked positions, ascending, to positions to write and the margin."""


RuleOfShares = Callable[[Array], tuple[list[int], float]]
"""Function from the distributions [n, V] at masked positions, ascending, to positions to write and the margin."""


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


def of_best(rule: Rule) -> RuleOfShares:
    """Return `rule` of the probabilities of the best tokens that may be written."""
    return lambda shares: rule(np.delete(shares, MASK, axis=1).max(axis=1))


def within_bound(gamma: float, *, by_entropy: bool) -> RuleOfShares:
    """Return the rule that writes the first positions by rank whose entropies, without the largest, sum to at most
    `gamma`."""

    def chosen(shares: Array) -> tuple[list[int], float]:
        entropies = -(shares * np.log(shares)).sum(axis=1)
        ranks = entropies if by_entropy else -np.delete(shares, MASK, axis=1).max(axis=1)
        order = np.argsort(ranks, kind="stable").tolist()
        count, closest = 0, np.inf
        for number in range(1, len(order) + 1):
            first = entropies[order[:number]]
            total = first.sum() - first.max()
            closest = min(closest, abs(total - gamma))
            if total > gamma:
                break
            count = number
        gaps = np.diff(ranks[order])
        return sorted(order[:count]), min(closest, gaps[count - 1] if count <= len(gaps) else np.inf)

    return chosen


_BOUND: dict[str, Any] = {"strategy": "eb", "block_add_threshold": 1.0}
RULES: dict[str, tuple[dict[str, Any], RuleOfShares]] = {
    "one": ({"strategy": "vanilla"}, of_best(best(1))),
    "threshold 0.4": ({"strategy": "threshold", "skip_threshold": 0.4}, of_best(above(0.4))),
    "threshold 0.8": ({"strategy": "threshold", "skip_threshold": 0.8}, of_best(above(0.8))),
    "bound 0.6": (_BOUND | {"gamma": 0.6, "confidence": "neg_entropy"}, within_bound(0.6, by_entropy=True)),
    "bound 2": (_BOUND | {"gamma": 2.0}, within_bound(2.0, by_entropy=False)),
}


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Path) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


@dataclass(frozen=True)
class Case:
    """A text with holes, and how they are filled."""

    ids: Array
    holes: tuple[Span, ...]
    rule: str
    block: int | None
    """Positions per block; None to fill all holes together."""


def random_case(rng: np.random.Generator, shift: int, vocabulary: int) -> Case:
    length = int(rng.integers(6, 40))
    count = int(rng.integers(1, 4))
    edges = sorted(rng.choice(np.arange(shift, length + 1), 2 * count, replace=False).tolist())
    holes = tuple(zip(edges[::2], edges[1::2], strict=True))
    # A mask token in the given text stays there.
    ids = rng.integers(0, vocabulary, length)
    return Case(ids, holes, str(rng.choice(list(RULES))), int(rng.integers(1, 6)) if rng.random() < 0.5 else None)


def plain_fill(network: PlainNetwork, case: Case, shift: int) -> tuple[list[int], int, float]:
    """Return the filled ids, the number of forwards, and the margin of the closest choice."""
    tokens, masked = case.ids.copy(), np.zeros(len(case.ids), np.bool_)
    for start, end in case.holes:
        tokens[start:end], masked[start:end] = MASK, True
    rows, forwards, closest = np.arange(len(tokens)), 0, np.inf
    while masked.any():
        logits, _ = network.rows(tokens, rows, np.ones((len(rows), len(rows)), np.bool_))
        forwards += 1
        opened = _opened(case, masked)
        shares = probabilities(logits[opened - shift])
        chosen, margin = RULES[case.rule][1](shares)
        shares[:, MASK] = 0.0
        ordered = np.sort(shares, axis=1)
        closest = min(closest, margin, *(ordered[chosen, -1] - ordered[chosen, -2]))
        tokens[opened[chosen]] = shares[chosen].argmax(axis=1)
        masked[opened[chosen]] = False
    return tokens.tolist(), forwards, float(closest)


def _opened(case: Case, masked: Array) -> Array:
    """Return the masked positions that a round may fill."""
    found = np.flatnonzero(masked)
    if case.block is None:
        return found
    start, end = next((start, end) for start, end in case.holes if masked[start:end].any())
    first = start + (int(found[0]) - start) // case.block * case.block
    return found[(found >= first) & (found < min(first + case.block, end))]


def fill(model: Model, case: Case, shorter: tuple[EncodedHoles, ...] = (), **options: Any) -> tuple[list[int], int]:
    """Return the filled ids and the number of forwards of our decode."""
    holes = EncodedHoles(case.ids, case.holes, (), in_turn=case.block is not None, shorter=shorter)
    blocks = {} if case.block is None else {"block_size": case.block}
    given = {"confidence": "probability", **RULES[case.rule][0], **blocks, **options}
    params = params_for_holes(
        params_of(max_new_tokens=holes.count, attention="full", **given), case.holes, block_size=case.block
    )
    decoding = LoneDecode(model.session, case.ids, params, model.manifest, hole_filling(holes, ()))
    decoding.run()
    return decoding.anchor.tokens.tolist(), decoding.steps


def cases(manifest: Manifest, seed: int) -> Iterator[tuple[Model, Case, int]]:
    rng, model, shift = random_model(manifest, seed)
    for _ in range(6):
        yield model, random_case(rng, shift, model.plain.sizes.vocabulary), shift


@pytest.mark.parametrize("seed", range(2 * len(LAYERS)))
def test_holes_are_filled_as_by_the_plain_loop(seed: int, manifest: Manifest) -> None:
    compared = 0
    for model, case, shift in cases(manifest, seed):
        tokens, forwards, closest = plain_fill(model.plain, case, shift)
        if closest < TOLERANCE:
            continue
        assert fill(model, case) == (tokens, forwards), case
        compared += 1
    assert compared >= 4


def shortened(case: Case, by: int) -> Case:
    """Return `case` with holes shorter by up to `by` positions, at least one position long."""
    ids, holes, removed = case.ids, list[Span](), 0
    for start, end in case.holes:
        less = min(by, end - start - 1)
        cut = slice(end - removed - less, end - removed)
        ids = np.delete(ids, np.arange(cut.start, cut.stop))
        holes.append((start - removed, cut.start))
        removed += less
    return replace(case, ids=ids, holes=tuple(holes))


def first_confidence(network: PlainNetwork, case: Case, shift: int) -> float:
    """Return the mean probability of the best token over all positions of the holes, before any is filled."""
    tokens, masked = case.ids.copy(), np.zeros(len(case.ids), np.bool_)
    for start, end in case.holes:
        tokens[start:end], masked[start:end] = MASK, True
    logits, _ = network.rows(tokens, np.arange(len(tokens)), np.ones((len(tokens),) * 2, np.bool_))
    shares = probabilities(logits[np.flatnonzero(masked) - shift])
    shares[:, MASK] = 0.0
    return float(shares.max(axis=1).mean())


@pytest.mark.parametrize("speculative", [False, True])
@pytest.mark.parametrize("seed", range(2 * len(LAYERS)))
def test_the_most_confident_length_is_filled(seed: int, speculative: bool, manifest: Manifest) -> None:
    compared, chosen = 0, set()
    for model, drawn, shift in cases(manifest, seed + 200):
        # Lengths are compared by the confidence of the request.
        rule = "threshold 0.4" if "confidence" in RULES[drawn.rule][0] else drawn.rule
        longest = replace(drawn, block=None, rule=rule)
        lengths = [each for by in (4, 2, 1) if (each := shortened(longest, by)).holes != longest.holes] + [longest]
        values = [first_confidence(model.plain, each, shift) for each in lengths]
        best = int(np.argmax(values))
        tokens, _, closest = plain_fill(model.plain, lengths[best], shift)
        if closest < TOLERANCE or any(abs(each - max(values)) < TOLERANCE for each in np.delete(values, best)):
            continue
        shorter = tuple(EncodedHoles(each.ids, each.holes, ()) for each in lengths[:-1])
        options = {"speculative": True, "branches": 3} if speculative else {}
        found, _ = fill(model, longest, shorter, **options)
        assert found == tokens, longest
        compared += 1
        chosen.add(best)
    assert compared >= 2
    assert len(chosen) > 1
