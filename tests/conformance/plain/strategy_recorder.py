"""FreeDave's and WINO's rules in their shortest form, over a random model, recorded with any settings.

The code follows the published rules on lists of numbers and does not use the runtime.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

MASK = 2
Rows = dict[int, tuple[int, float]]


class DrawnModel:
    """A random token and probability for every masked position, which change somewhat with the unmasked tokens."""

    def __init__(self, seed: int, length: int, *, steady: float) -> None:
        """Make a random model. The larger `steady` is, the less predictions change and the more drafts are accepted."""
        rng = np.random.default_rng(seed)
        self._seed, self._steady = seed, steady
        self._tokens, self._sure = rng.integers(10, 90, length), rng.normal(1.0, 1.5, length)

    def predict(self, state: list[int]) -> Rows:
        digest = hashlib.sha256(repr((self._seed, state)).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        noise = rng.normal(0.0, 1.0, len(state)) / self._steady
        other = rng.random(len(state)) < 0.3 / self._steady
        tokens = np.where(other, rng.integers(10, 90, len(state)), self._tokens)
        p = np.float32(1 / (1 + np.exp(-self._sure - noise)))
        return {at: (int(tokens[at]), float(p[at])) for at, token in enumerate(state) if token == MASK}


def freedave_trace(
    model: DrawnModel, length: int, *, draft_steps: int, threshold: float | None, rule: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the trace of one block of `length` positions."""
    steps: list[dict[str, Any]] = []

    def predicted(states: list[list[int]]) -> list[Rows]:
        rows = [model.predict(state) for state in states]
        steps.append({"op": "predict", "rows": [[[at, *pair, 0.0] for at, pair in each.items()] for each in rows]})
        return rows

    def transferred(states: list[list[int]], rows: list[Rows], count: int | None, limit: float | None) -> Any:
        out = []
        for state, predicted in zip(states, rows, strict=True):
            by_rank = sorted(predicted, key=lambda at: -predicted[at][1])
            sure = sum(limit is not None and predicted[at][1] >= np.float32(limit) for at in by_rank)
            for depth in range(count or 1):
                draft = list(state)
                for at in by_rank[: max(sure, 1) + depth]:
                    draft[at] = predicted[at][0]
                out.append(draft)
        steps.append({"op": "transfer", "draft_steps": count, "threshold": limit, "x": states, "out": out})
        return out

    state = [MASK] * length
    known = predicted([state])[0]
    while MASK in state:
        drafts = transferred([state], [known], min(draft_steps, state.count(MASK)), threshold)
        rows = predicted(drafts)
        targets = transferred(drafts, rows, None, threshold)
        accepted = 0
        while True:
            goes_on = [
                number
                for number in range(accepted + 1, len(drafts))
                if all(
                    d == t or (d == MASK and rule == "subset")
                    for d, t in zip(drafts[number], targets[accepted], strict=True)
                )
            ]
            if not goes_on:
                break
            accepted = goes_on[-1]
        steps.append({"op": "verify", "rule": rule, "accepted": accepted})
        state, known = drafts[accepted], rows[accepted]
    params = {"temperature": 0.0, "mask_token_id": MASK, "draft_steps": draft_steps, "draft_mode": "batch_expanding"}
    if threshold is not None:
        params["confidence_threshold"] = threshold
    return {"alg": "freedave", "params": params}, {"steps": steps}


def wino_trace(
    model: DrawnModel, length: int, block: int, *, low: float, back: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the trace of an answer of `length` positions in blocks."""
    state, steps = [MASK] * length, list[Mapping[str, Any]]()
    for start in range(0, length, block):
        last, inside = 30, range(start, start + block)
        while any(state[at] == MASK for at in inside):
            predicted = {at: each for at, each in model.predict(state).items() if at in inside}
            verified = {
                at: model.predict([*state[:at], MASK, *state[at + 1 :]])[at] for at in inside if state[at] != MASK
            }
            doubts = {at: p if token == state[at] else (1 - p) / 2 for at, (token, p) in verified.items()}
            steps.append(
                {
                    "block": [start, start + block],
                    "x": list(state),
                    "masked": [[at, token, p, 0.0] for at, (token, p) in predicted.items()],
                    "filled": [[at, p] for at, p in doubts.items()],
                }
            )
            by_rank = sorted(predicted, key=lambda at: -predicted[at][1])
            above = [at for at in by_rank if predicted[at][1] > np.float32(low)]
            chosen = above[: min(max(int(len(predicted) * 0.7), 5), 20)] or by_rank[:1]
            for at in chosen:
                state[at] = predicted[at][0]
            if len(chosen) > 1:
                below = sorted((at for at in doubts if doubts[at] < back), key=lambda at: doubts[at])
                for at in below[: last - 1] if len(below) >= last else below:
                    state[at] = MASK
            last = len(chosen)
    params = {"threshold": low, "threshold_back": back, "temperature": 0.0, "mask_id": MASK}
    return {"name": "wino_drawn", "params": params}, {"steps": steps, "generated_ids": state}
