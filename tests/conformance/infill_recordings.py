"""Recorded loops that fill holes, and comparison with our steps.

tests/reference/infill/README.md describes the recordings.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.conformance.family_traces import (
    PROBABILITY_TOLERANCE,
    Header,
    near_ties,
    read_family_traces,
)
from tests.conformance.recorded import Comparison

from lopa.runtime import Decoder, Step
from lopa.runtime.contract import Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.candidates import candidates_from_rows
from lopa.runtime.strategy import Candidates
from lopa.runtime.text.text_with_holes import Hole

INFILL = Path(__file__).resolve().parents[1] / "reference" / "infill"
PLAIN, DREAMON = "plain_infill", "batch_generate_with_expand_as_token"
"""Ends of the names of the known loops."""
_CONFIDENCES = {
    **{name: name for name in ("probability", "neg_entropy", "margin")},
    "maskgit_plus": "probability",
    "topk_margin": "margin",
    "entropy": "neg_entropy",
}
_WHOLE_HOLES = {"block_size": 1024}
"""Blocks end with their hole, so that a block of this size is a hole."""
Proposals = Mapping[int, Mapping[int, float]]
"""Probabilities of the model's best tokens by position, best first and the mask token included."""


def infill_files(folder: Path = INFILL) -> list[Path]:
    """Return the recordings in `folder`."""
    return sorted(folder.glob("*.jsonl.gz"))


def is_dreamon(header: Header) -> bool:
    return str(header["loop"]).endswith(DREAMON)


def _options_of_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return our options of a rule of the plain loop.

    `open` is "all", "hole" for one hole at a time, or the length of one window at a time.
    """
    own: dict[str, Any] = {
        "one": {"strategy": "vanilla", "cache": "none"},
        "threshold": {"strategy": "threshold", "cache": "none", "skip_threshold": rule.get("threshold")},
        "entropy_bound": {"strategy": "eb", "gamma": rule.get("gamma"), "block_add_threshold": 1.0},
    }[rule["name"]]
    own |= {"confidence": _CONFIDENCES[rule.get("by", "probability")]}
    if rule["open"] == "all":
        return own
    return own | (_WHOLE_HOLES if rule["open"] == "hole" else {"block_size": rule["open"]})


def parts_of_trace(header: Header, trace: Mapping[str, Any]) -> list[Any]:
    """Return the given token ids and the holes of a trace."""
    ids = trace["ids"]
    if is_dreamon(header):
        (start, end), params = trace["hole"], header["params"]
        hole = Hole(params["min_gen_len"], params["max_gen_len"])
        return [part for part in (ids[:start], hole, ids[end:]) if part]
    edges = [0, *(edge for hole in trace["holes"] for edge in hole), len(ids)]
    pieces = [
        Hole(end - start) if number % 2 else ids[start:end] for number, (start, end) in enumerate(pairwise(edges))
    ]
    return [piece for piece in pieces if isinstance(piece, Hole) or piece]


def infill_comparisons(path: Path, decoder: Decoder, limit: int | None = None) -> list[Comparison]:
    """Fill the holes of all traces of a file, or the first, and compare. Raises BadInputError for an unknown loop."""
    header, traces = read_family_traces(path)
    if is_dreamon(header):
        params = header["params"]
        options = {"confidence": _CONFIDENCES[params["alg"]], "drop_after_eos": params["pad_eos_to_right"]}
    else:
        options = _options_of_rule(header["rule"])
    found = []
    for trace in traces[:limit]:
        steps: list[tuple[Step, Proposals]] = []
        best: dict[int, Mapping[int, float]] = {}

        def seen(rows: RowStatistics, positions: Int64, *more: Any, **options: Any) -> Candidates:
            columns = zip(positions.ravel(), rows.topk_ids.reshape(positions.size, -1), strict=True)
            shares = np.exp(rows.topk_logprobs.reshape(positions.size, -1)).tolist()
            for (position, ids), own in zip(columns, shares, strict=True):
                best[int(position)] = dict(zip(ids.tolist(), own, strict=True))  # noqa: B023
            return candidates_from_rows(rows, positions, *more, **options)

        def on_step(step: Step) -> None:
            steps.append((step, dict(best)))  # noqa: B023
            best.clear()  # noqa: B023

        with patch("lopa.runtime.decoding.round.candidates_from_rows", seen):
            result = decoder.fill(parts_of_trace(header, trace), on_step=on_step, **options)
        found.append(compared(header, trace, steps, _filled(trace, list(result.token_ids))))
    return found


def _filled(trace: Mapping[str, Any], fills: list[int]) -> list[int]:
    """Return the ids of a trace with its holes replaced by `fills`, the ids of all holes."""
    ids, given = list(trace["ids"]), iter(fills)
    if "hole" in trace:
        start, end = trace["hole"]
        return [*ids[:start], *fills, *ids[end:]]
    for start, end in trace["holes"]:
        ids[start:end] = [next(given) for _ in range(start, end)]
    return ids


def compared(
    header: Header, trace: Mapping[str, Any], own: list[tuple[Step, Proposals]], filled: list[int]
) -> Comparison:
    """Compare our steps, each with the model's best tokens, and the filled ids with a trace.

    A difference at a near-tie ends the comparison.
    """
    found, steps = Comparison(), [step for step, _ in own]
    for number, recorded in enumerate(trace["steps"]):
        found.steps += 1
        fills = sorted((position, token) for position, token, _ in recorded["fills"])
        ties = near_ties(recorded["margins"])
        found.near_ties += bool(ties)
        wrong = _other_probability(recorded, own[number][1] if number < len(own) else {})
        unmasked = steps[number].unmasked if number < len(steps) else None
        ours = [] if unmasked is None else list(zip(unmasked.positions.tolist(), unmasked.tokens.tolist(), strict=True))
        after = steps[number + 1].branches[-1].tokens.tolist() if number + 1 < len(steps) else filled
        if wrong is None and (sorted(ours) != fills or after != recorded.get("window_after", after)):
            wrong = f"{ours} instead of {fills}"
        if wrong is not None:
            if ties:
                found.diverged_at, found.named = number, f"trace {trace['i']} step {number}: {', '.join(ties)}"
            else:
                found.mismatch = f"trace {trace['i']} step {number}: {wrong}"
            return found
    if len(steps) != len(trace["steps"]):
        found.mismatch = f"trace {trace['i']}: {len(steps)} steps instead of {len(trace['steps'])}"
    elif filled != trace["filled_ids"]:
        found.mismatch = f"trace {trace['i']}: {filled}"
    return found


def _other_probability(recorded: Mapping[str, Any], proposals: Proposals) -> str | None:
    """Return how the recorded probabilities differ from the model's, or None."""
    for position, token, probability in recorded["fills"]:
        best = proposals.get(position, {})
        # Without the expand token, the recorded probabilities have another sum.
        if (
            token in best
            and not recorded.get("expand_blocked", "window_after" in recorded)
            and abs(best[token] - probability) > PROBABILITY_TOLERANCE
        ):
            return f"probability {best[token]} of position {position}, recorded {probability}"
    return None
