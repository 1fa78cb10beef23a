"""Holes grow and shrink as by a plain loop in float64 with lists, which computes the whole text in every round.

Random networks with every family's layers and both shifts, several holes of random ranges, and several rules. The
tokens that expand and end a hole are the two that the network proposes most often.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.conformance.plain.plain_decode import Rule, above, best
from tests.conformance.plain.plain_network import Array, PlainNetwork
from tests.conformance.plain.test_plain_caches import LAYERS, MASK, TOLERANCE, Model, probabilities, random_model
from tests.lone_decode import LoneDecode
from tests.params import params_of

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest, SpecialTokens
from lopa.runtime.contract import TOP_K
from lopa.runtime.decoding.growing_holes import hole_filling
from lopa.runtime.options.hole_params import params_for_holes
from lopa.runtime.text.encoded_holes import EncodedHoles

Confidence = Callable[[Array], Array]
"""Function from probabilities [n, V] with 0 for tokens that may not be written, to confidences [n]."""


def top(shares: Array) -> Array:
    return shares.max(axis=1)


def margin(shares: Array) -> Array:
    two = np.sort(shares, axis=1)[:, -2:]
    return two[:, 1] - two[:, 0]


RULES: dict[str, tuple[dict[str, Any], Rule, Confidence]] = {
    "one": ({"strategy": "vanilla"}, best(1), top),
    "one by margin": ({"strategy": "vanilla", "confidence": "margin"}, best(1), margin),
    "threshold 0.3": ({"strategy": "threshold", "skip_threshold": 0.3}, above(0.3), top),
    "threshold 0.7": ({"strategy": "threshold", "skip_threshold": 0.7}, above(0.7), top),
}


@dataclass(frozen=True)
class Case:
    """A text with holes."""

    given: tuple[tuple[int, ...], ...]
    """Tokens before, between and behind the holes."""
    least: tuple[int, ...]
    most: tuple[int, ...]
    rule: str
    drops: bool
    """True if an end of text deletes the masked positions behind it in its hole."""


@dataclass
class PlainHole:
    """A hole: tokens, None for masked positions, and how often it may still expand."""

    cells: list[int | None]
    most: int
    left: int


@dataclass(frozen=True)
class Roles:
    """Tokens that change the length of a hole."""

    expand: int
    end: int


def random_case(rng: np.random.Generator, shift: int, vocabulary: int) -> Case:
    count = int(rng.integers(1, 4))
    lengths = rng.integers(1, 7, count + 1)
    lengths[0] = rng.integers(shift, 6)
    lengths[-1] = rng.integers(0, 6)
    least = rng.integers(1, 6, count)
    most = least + rng.integers(0, 7, count)
    most[0] = max(most[0], least[0] + 1)
    return Case(
        tuple(tuple(rng.integers(0, vocabulary, length).tolist()) for length in lengths),
        tuple(least.tolist()),
        tuple(most.tolist()),
        str(rng.choice(list(RULES))),
        bool(rng.random() < 0.5),
    )


def plain_ids(case: Case, holes: list[PlainHole]) -> tuple[Array, list[tuple[PlainHole, int, int]]]:
    """Return the ids of the text, and hole, index in the hole and position of each masked position."""
    ids, places = [*case.given[0]], list[tuple[PlainHole, int, int]]()
    for hole, given in zip(holes, case.given[1:], strict=True):
        places += [(hole, index, len(ids) + index) for index, cell in enumerate(hole.cells) if cell is None]
        ids += [MASK if cell is None else cell for cell in hole.cells]
        ids += given
    return np.array(ids), places


def plain_shares(network: PlainNetwork, ids: Array, positions: Array, shift: int) -> Array:
    logits, _ = network.rows(ids, np.arange(len(ids)), np.ones((len(ids),) * 2, np.bool_))
    return probabilities(logits[positions - shift])


def roles_of(network: PlainNetwork, case: Case, shift: int) -> Roles:
    """Return the two tokens that most positions of long holes propose."""
    ids, places = plain_ids(case, [PlainHole([None] * 12, 12, 12) for _ in case.least])
    shares = plain_shares(network, ids, np.array([position for _, _, position in places]), shift)
    shares[:, MASK] = 0.0
    counts = np.bincount(shares.argmax(axis=1), minlength=shares.shape[1]) + shares.mean(axis=0)
    counts[MASK] = -1.0
    first, second = np.argsort(-counts, kind="stable")[:2].tolist()
    return Roles(first, second)


def plain_fill(network: PlainNetwork, case: Case, roles: Roles, shift: int) -> tuple[list[int], int, float, set[str]]:
    """Return the filled ids, the number of forwards, the margin of the closest choice, and what happened."""
    holes = [PlainHole([None] * least, most, most) for least, most in zip(case.least, case.most, strict=True)]
    forwards, closest, seen = 0, np.inf, set[str]()
    while True:
        ids, places = plain_ids(case, holes)
        if not places:
            return ids.tolist(), forwards, float(closest), seen
        shares = plain_shares(network, ids, np.array([position for _, _, position in places]), shift)
        forwards += 1
        for row, (hole, _, _) in zip(shares, places, strict=True):
            own = row[roles.expand]
            if (len(hole.cells) == hole.most or not hole.left) and (row > own).sum() < TOP_K:
                seen.add("blocked")
                row /= 1.0 - own
                row[roles.expand] = 0.0
        shares[:, MASK] = 0.0
        ordered = np.sort(shares, axis=1)
        _, rule, confidence = RULES[case.rule]
        chosen, gap = rule(confidence(shares))
        closest = min(closest, gap, *(ordered[chosen, -1] - ordered[chosen, -2]))
        was_masked = {id(hole): [cell is None for cell in hole.cells] for hole in holes}
        for number in chosen:
            hole, index, _ = places[number]
            hole.cells[index] = int(shares[number].argmax())
        for hole in holes:
            seen |= with_new_length(hole, was_masked[id(hole)], roles, drops=case.drops)


def with_new_length(hole: PlainHole, was_masked: list[bool], roles: Roles, *, drops: bool) -> set[str]:
    """Delete and expand the written cells of a hole. Return what happened."""
    kept, ended, seen = list[tuple[int | None, bool]](), False, set[str]()
    for cell, is_new in zip(hole.cells, was_masked, strict=True):
        ended = ended or (drops and is_new and cell == roles.end)
        if is_new and (cell == roles.end or ended):
            seen.add("deleted" if cell == roles.end else "dropped")
        else:
            kept.append((cell, is_new))
    hole.cells, room = [], hole.most - len(kept)
    for cell, is_new in kept:
        if not is_new or cell != roles.expand:
            hole.cells.append(cell)
            continue
        hole.cells.append(None)
        if room and hole.left:
            hole.cells.append(None)
            room, hole.left = room - 1, hole.left - 1
            seen.add("expanded")
    return seen


def encoded(case: Case, sizes: tuple[int, ...], **more: Any) -> EncodedHoles:
    ids, holes = [*case.given[0]], list[tuple[int, int]]()
    for size, given in zip(sizes, case.given[1:], strict=True):
        holes.append((len(ids), len(ids) + size))
        ids += [MASK] * size + [*given]
    return EncodedHoles(np.array(ids), tuple(holes), (), **more)


def fill(model: Model, case: Case, roles: Roles) -> tuple[list[int], int, LoneDecode]:
    """Return the filled ids, the number of forwards, and our decode."""
    holes = encoded(case, case.most, shorter=(encoded(case, case.least),), grows=True)
    options = {"drop_after_eos": case.drops, "logprobs": True, "top_logprobs": 1}
    options |= {"confidence": "probability", **RULES[case.rule][0]}
    params = params_for_holes(
        params_of(max_new_tokens=holes.count, attention="full", **options),
        holes.holes,
        block_size=None,
        grows=True,
    )
    tokens = SpecialTokens(mask=MASK, eos=roles.end, pad=roles.end, bos=None, expand=roles.expand)
    manifest = msgspec.structs.replace(model.manifest, special_tokens=tokens)
    decoding = LoneDecode(model.session, holes.ids, params, manifest, hole_filling(holes, manifest.special_tokens.ends))
    while decoding.stop_reason is None:
        decoding.step()
        logprobs = decoding.anchor.logprobs
        assert logprobs is not None
        assert np.isnan(logprobs[~decoding.anchor.unmasked]).all()
    decoding.release()
    return decoding.anchor.tokens.tolist(), decoding.steps, decoding


def cases(manifest: Manifest, seed: int) -> Iterator[tuple[Model, Case, int]]:
    rng, model, shift = random_model(manifest, seed)
    for _ in range(6):
        yield model, random_case(rng, shift, model.plain.sizes.vocabulary), shift


@pytest.fixture(scope="module")
def manifest(tiny_bundle: Path) -> Manifest:
    return Bundle.open(tiny_bundle).manifest


@pytest.mark.parametrize("seed", range(2 * len(LAYERS)))
def test_holes_grow_as_by_the_plain_loop(seed: int, manifest: Manifest) -> None:
    compared, seen = 0, set[str]()
    for model, case, shift in cases(manifest, seed):
        roles = roles_of(model.plain, case, shift)
        tokens, forwards, closest, happened = plain_fill(model.plain, case, roles, shift)
        if closest < TOLERANCE:
            continue
        found, steps, decoding = fill(model, case, roles)
        assert (found, steps) == (tokens, forwards), case
        check_record(decoding)
        compared += 1
        seen |= happened
    assert compared >= 4
    assert {"expanded", "deleted", "blocked"} <= seen


def check_record(decoding: LoneDecode) -> None:
    """Check that positions and log-probabilities have moved along with the tokens of the holes."""
    holes, top, logprobs = decoding.answer.holes, decoding.answer.top_logprobs, decoding.answer.logprobs
    assert holes is not None
    assert top is not None
    assert logprobs is not None
    first = decoding.answer.start
    for start, end in holes.holes:
        for position in range(start, end):
            [(token, logprob)] = top[position - first]
            assert token == decoding.anchor.tokens[position]
            assert logprob == pytest.approx(float(logprobs[position - first]), abs=1e-5)
    given = [each for (_, end), (start, _) in pairwise(holes.holes) for each in range(end, start)]
    assert np.isnan(logprobs[[each - first for each in given]]).all()
