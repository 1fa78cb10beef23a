"""Every decision of recorded runs of FreeDave's published code, made again by our stages, our ladder and our walk.

tests/reference/strategies/README.md says what was recorded and how. Each decision is made from the recorded state, so
that none hides the next.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.ladder.guesses import ladder
from lopa.runtime.ladder.walk import walk
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.open_block import OpenBlock
from lopa.runtime.strategy.places import chosen_places
from lopa.runtime.strategy.settings import rule_from_config

RECORDINGS = Path(__file__).parents[2] / "reference" / "strategies"
MASK = 2
TIE = 1e-6
"""Below which the published code, which ranks float32 probabilities near 1, may take another of equal positions."""


@dataclass(frozen=True)
class Said:
    """What the model answered to one state: of each masked position the best token and its probability."""

    tokens: Int64
    probabilities: Float32


def config_of(threshold: float | None) -> GenerationConfig:
    if threshold is None:
        return GenerationConfig(strategy="vanilla")
    return GenerationConfig(strategy="threshold", skip_threshold=threshold)


def drafts_from(state: Int64, said: Said, config: GenerationConfig, most: int) -> tuple[Int64, ...]:
    """The rule's next state, which is certain, and what our ladder drafts behind it."""

    def following(tokens: Int64) -> Int64 | None:
        undecided: Bool = tokens == MASK
        if not undecided.any():
            return None
        candidates = Candidates(said.tokens, said.probabilities, said.probabilities)
        block = OpenBlock(np.arange(len(tokens)), candidates, undecided, complete=True, rounds=0)
        return np.where(chosen_places(block, rule_from_config(config), config), said.tokens, tokens)

    known = following(state)
    return ladder(state if known is None else known, following, most)


def accepted_by_walk(drafts: list[Int64], targets: list[Int64]) -> int:
    accepted, _ = walk(drafts, lambda _, rung: targets[rung], within)
    return accepted


def within(draft: Int64, target: Int64) -> bool:
    """The published test: what the draft has decided, the target has too."""
    return bool(((draft == MASK) | (draft == target)).all())


def is_tie(state: Int64, found: Int64, recorded: Int64, said: Said) -> bool:
    """As many fills with the same probabilities: which of equal positions is open."""
    if not within(recorded, np.where(state == MASK, said.tokens, state)):
        return False
    own, theirs = (np.sort(said.probabilities[(state == MASK) & (after != MASK)]) for after in (found, recorded))
    return len(own) == len(theirs) and bool((np.abs(own - theirs) < TIE).all())


def said_of(rows: list[list[float]], length: int) -> Said:
    tokens, probabilities = np.full(length, MASK), np.zeros(length, np.float32)
    for position, token, probability, _ in rows:
        tokens[int(position)], probabilities[int(position)] = int(token), probability
    return Said(tokens, probabilities)


def replayed(trace: dict[str, Any]) -> Iterator[tuple[str, bool, bool]]:
    """Of every decision: its kind, whether ours is the same, and whether a difference is a tie."""
    predicted: list[Any] = []
    drafts: list[Int64] = []
    targets: list[Int64] = []
    accepted = 0
    for step in trace["steps"]:
        if step["op"] == "predict":
            predicted = step["rows"]
        elif step["op"] == "transfer":
            states, out = (np.array(step[key]) for key in ("x", "out"))
            each = step["draft_steps"] or 1
            for row, state in enumerate(states):
                # A state after a verification was predicted for as the draft that was accepted.
                said = said_of(predicted[row if len(predicted) == len(states) else accepted], len(state))
                own = drafts_from(state, said, config_of(step["threshold"]), each)
                # The published ladder repeats a state that is whole.
                padded = [*own, *[own[-1]] * (each - len(own))]
                for found, recorded in zip(padded, out[row * each : (row + 1) * each], strict=True):
                    yield "state", bool((found == recorded).all()), is_tie(state, found, recorded, said)
            if step["draft_steps"] is None:
                targets = list(out)
            else:
                drafts = list(out)
        elif step["op"] == "verify":
            # A block's first drafts were made of a state that is none of them.
            known = drafts if len(drafts) == len(targets) else [targets[0], *drafts]
            accepted = step["accepted"]
            yield "walk", accepted_by_walk(known, targets) == accepted, False


@pytest.mark.parametrize(
    ("name", "states", "walks"),
    [
        ("static_b32_g64", 372, 0),
        ("parallel_t09_b32_g64", 92, 0),
        ("freedave_d4_b32_g64", 1433, 185),
        ("freedave_d4_b64_g64", 1513, 191),
        ("freedave_d8_b32_g64_dual", 2492, 171),
        ("freedavepp_d4_t09_b32_g64", 694, 70),
    ],
)
def test_recorded_decisions(name: str, states: int, walks: int) -> None:
    with gzip.open(RECORDINGS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        _, *traces = map(json.loads, lines)
    found = Counter(decision for trace in traces for decision in replayed(trace))
    decided = {kind: sum(count for (each, _, _), count in found.items() if each == kind) for kind in ("state", "walk")}
    assert decided == {"state": states, "walk": walks}
    assert not [decision for decision in found if decision[1:] == (False, False)]
    ties = sum(count for (_, same, tie), count in found.items() if tie and not same)
    assert ties <= 0.1 * states  # of positions near probability 1; most decisions are no ties
