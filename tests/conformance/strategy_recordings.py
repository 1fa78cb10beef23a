"""Recorded decisions of published strategies (tests/reference/strategies), repeated by our stages and verification.

Every decision starts from the recorded state, so that none hides the next. All settings are read from the recording.
"""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.params import params_of
from tests.runtime.strategy.blocks import view_of

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.decoding.speculation import accepted_draft
from lopa.runtime.strategy import STRATEGIES, Candidates, RemaskView
from lopa.runtime.strategy.strategies import BEFORE_FIRST_STEP
from lopa.runtime.strategy.strategy import unmasked_positions

RECORDINGS = Path(__file__).parents[1] / "reference" / "strategies"
TIE = 1e-6
"""Tolerance for ties. The published code ranks rounded probabilities near 1 and may take another of equal positions."""
_NO_LIMIT = 2**31 - 1


@dataclass(frozen=True)
class Decision:
    """A repeated decision."""

    kind: str
    """`state` for the result of a step, `walk` for the accepted draft."""
    same: bool
    tie: bool = False
    """True if it differs only in the choice among equally probable positions."""
    remasked: int = 0


@dataclass(frozen=True)
class Predictions:
    """The model's best token and its probability at each masked position of a state."""

    tokens: Int64
    probabilities: Float32


def decisions_of_file(path: Path) -> Iterator[Decision]:
    """Yield every decision of a file of recordings."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        header, *traces = map(json.loads, lines)
    for trace in traces:
        yield from decisions_of_trace(header, trace)


def decisions_of_trace(header: Mapping[str, Any], trace: Mapping[str, Any]) -> Iterator[Decision]:
    """Yield every decision of a trace, by the rule that the file's `header` names."""
    name = str(header.get("alg") or str(header.get("name")).split("_")[0])
    return _RULES[name](header["params"], trace)


def counted(decisions: Iterator[Decision]) -> Counter[str]:
    """Return the number of decisions of each kind, ties, other differences, and remasked positions."""
    found = Counter[str]()
    for decision in decisions:
        found[decision.kind] += 1
        found["tie"] += decision.tie
        found["different"] += not decision.same and not decision.tie
        found["remasked"] += decision.remasked
    return found


def _freedave(params: Mapping[str, Any], trace: Mapping[str, Any]) -> Iterator[Decision]:
    mask = params["mask_token_id"]
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
                # A state after a verification has the predictions of the accepted draft.
                model = _by_position(predicted[row if len(predicted) == len(states) else accepted], len(state), mask)
                own = drafts_from(state, model, step["threshold"], each, mask)
                # The published code repeats a complete state.
                padded = [*own, *[own[-1]] * (each - len(own))]
                for found, recorded in zip(padded, out[row * each : (row + 1) * each], strict=True):
                    same = bool((found == recorded).all())
                    yield Decision("state", same, not same and _is_tie(state, found, recorded, model, mask))
            if step["draft_steps"] is None:
                targets = list(out)
            else:
                drafts = list(out)
        elif step["op"] == "verify":
            agree = _AGREE[step["rule"]]
            # A block's first drafts come from a state that is not one of the drafts.
            drafted = drafts if len(drafts) == len(targets) else [targets[0], *drafts]
            accepted = step["accepted"]
            last = _accepted(drafted, targets, partial(agree, mask=mask))
            yield Decision("draft", last == accepted)


def drafts_from(state: Int64, model: Predictions, threshold: float | None, max: int, mask: int) -> tuple[Int64, ...]:
    """Return the rule's next state, which is certain, and the drafts behind it, at most `most` in total."""
    params = params_of(strategy="vanilla")
    if threshold is not None:
        # The published rule accepts values equal to the threshold; ours has to exceed it.
        below = float(np.nextafter(np.float32(threshold), np.float32(0)))
        params = params_of(strategy="threshold", skip_threshold=below)

    def following(tokens: Int64) -> Int64 | None:
        masked: Bool = tokens == mask
        if not masked.any():
            return None
        candidates = Candidates(model.tokens, model.probabilities, model.probabilities)
        block = view_of(np.arange(len(tokens)), candidates, masked)
        return np.where(unmasked_positions(block, STRATEGIES[params.strategy], params), model.tokens, tokens)

    known = following(state)
    found = [state if known is None else known]
    while len(found) < max and (draft := following(found[-1])) is not None:
        found.append(draft)
    return tuple(found)


def _accepted(drafted: list[Int64], targets: list[Int64], agree: Callable[[Int64, Int64], bool]) -> int:
    """Return the last draft that our verification accepts."""
    last, following = 0, accepted_draft([agree(draft, targets[0]) for draft in drafted], 0)
    while following is not None:
        last, following = following, accepted_draft([agree(draft, targets[following]) for draft in drafted], following)
    return last


def _within(draft: Int64, target: Int64, mask: int) -> bool:
    """Return True if the target contains all unmasked tokens of the draft."""
    return bool(((draft == mask) | (draft == target)).all())


def _equal(draft: Int64, target: Int64, mask: int) -> bool:
    return bool((draft == target).all())


_AGREE: Mapping[str, Callable[..., bool]] = {"subset": _within, "exact": _equal}


def _is_tie(state: Int64, found: Int64, recorded: Int64, model: Predictions, mask: int) -> bool:
    """Return True if the same number of tokens, with the same probabilities, was unmasked at other positions."""
    if not _within(recorded, np.where(state == mask, model.tokens, state), mask):
        return False
    own, theirs = (model.probabilities[(state == mask) & (after != mask)] for after in (found, recorded))
    return _as_probable(own, theirs)


def _as_probable(own: Floats, theirs: Floats) -> bool:
    return len(own) == len(theirs) and bool((np.abs(np.sort(own) - np.sort(theirs)) < TIE).all())


def _by_position(rows: list[list[float]], length: int, mask: int) -> Predictions:
    tokens, probabilities = np.full(length, mask), np.zeros(length, np.float32)
    for position, token, probability, _ in rows:
        tokens[int(position)], probabilities[int(position)] = int(token), probability
    return Predictions(tokens, probabilities)


def _wino(published: Mapping[str, Any], trace: Mapping[str, Any]) -> Iterator[Decision]:
    mask = published["mask_id"]
    params = params_of(
        strategy="wino", skip_threshold=published["threshold"], remask_threshold=published["threshold_back"]
    )
    wino = STRATEGIES["wino"]
    assert wino.remask is not None
    states = [*(step["x"] for step in trace["steps"]), trace["generated_ids"]]
    at, before = None, BEFORE_FIRST_STEP
    for step, after in zip(trace["steps"], states[1:], strict=True):
        if step["block"] != at:
            at, before = step["block"], BEFORE_FIRST_STEP
        state, recorded = np.array(step["x"]), np.array(after)
        positions, tokens, p, _ = _columns(step["masked"], np.int64, np.int64, np.float64, np.float64)
        filled, judged = _columns(step["filled"], np.int64, np.float64)
        candidates = Candidates(tokens, p, np.zeros(len(p), np.float32))
        chosen = unmasked_positions(view_of(positions, candidates), wino, params)
        accepted = int(np.count_nonzero(chosen))
        back = wino.remask(RemaskView(judged, accepted, before, limit=_NO_LIMIT), params)
        found = state.copy()
        found[positions[chosen]] = tokens[chosen]
        found[filled[back]] = mask
        same = bool((found == recorded).all())
        tie = (
            _within(recorded[positions], tokens, mask)
            and _as_probable(p[chosen], p[recorded[positions] != mask])
            and _as_probable(judged[back], judged[recorded[filled] == mask])
        )
        yield Decision("state", same, not same and tie, int(np.count_nonzero(back)))
        before = accepted


def _columns(rows: list[list[float]], *kinds: Any) -> list[Any]:
    """Return the columns of recorded rows, each an array of its type."""
    table = np.array(rows, np.float64).reshape(-1, len(kinds))
    return [table[:, number].astype(kind) for number, kind in enumerate(kinds)]


_RULES: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Decision]]] = {
    "freedave": _freedave,
    "base": _freedave,
    "wino": _wino,
}
